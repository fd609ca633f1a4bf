"""Rules about saving, resuming and evaluation."""

from __future__ import annotations

from pathlib import Path

from relax_engine.config.rules.base import Findings, Reporter, rule
from relax_engine.config.run_config import RunConfig


@rule
def saving_needs_a_directory(config: RunConfig, report: Reporter) -> Findings:
    """Intervals and limits of checkpoints need --save."""
    for name in ("save_interval", "max_actor_ckpt_to_keep"):
        if getattr(config.checkpoint, name) is not None and config.checkpoint.save is None:
            yield report.error(f"{name} save", "there is no directory to save to", "--save DIR")


@rule
def reference_exists(config: RunConfig, report: Reporter) -> Findings:
    """--ref-load is a directory."""
    given = config.explicit().get("ref_load")
    if given is not None and not Path(given).is_dir():
        yield report.error(
            "ref_load", "no such directory", "name a model directory, or leave it out to use --hf-checkpoint"
        )


@rule
def resume_finds_a_checkpoint(config: RunConfig, report: Reporter) -> Findings:
    """Say so when --load holds no complete checkpoint."""
    load = config.checkpoint.load
    if load is not None and "://" not in load and not (Path(load) / "latest_checkpointed_iteration.txt").is_file():
        yield report.note(
            "load",
            "no complete checkpoint there yet: the run starts at rollout 0 from --ref-load or --hf-checkpoint",
        )


@rule
def evaluation_has_data(config: RunConfig, report: Reporter) -> Findings:
    """The interval and the prompts of evaluation come together."""
    evaluation = config.evaluation
    if evaluation.eval_interval is not None and not evaluation.eval_prompt_data:
        yield report.error(
            "eval_interval eval_prompt_data", "there is nothing to evaluate on", "--eval-prompt-data name FILE"
        )
    if evaluation.eval_interval is None and evaluation.eval_prompt_data:
        yield report.note("eval_prompt_data eval_interval", "not evaluated during training", "--eval-interval N")
