"""Rules about the learning-rate schedule."""

from __future__ import annotations

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def warmup_ends_before_the_decay_does(config: RunConfig, report: Reporter) -> Findings:
    """The warm-up is shorter than the decay."""
    settings = config.optimizer
    steps = settings.lr_decay_iters
    if steps is None and config.data.num_rollout is not None:
        steps = config.data.num_rollout * (config.data.num_steps_per_rollout or 1)
    if settings.lr_decay_style != "constant" and steps is not None and settings.lr_warmup_iters >= steps:
        yield report.error(
            "lr_warmup_iters lr_decay_iters num_rollout",
            f"the warm-up of {settings.lr_warmup_iters} steps leaves nothing of the {steps} steps to decay over",
            f"--lr-warmup-iters below {steps}, or --lr-decay-style constant",
        )
