"""`relax train`: check the configuration, train, print the result.

What lives here: the order of these three, and the summary. What does not: each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.config import parse_args
from relax_engine.config.doctor import check, refuse_errors
from relax_engine.utils.logging import configure_logging

if TYPE_CHECKING:
    from relax_engine.core.result import RunResult


def main(argv: list[str]) -> int:
    """Train with the flags in `argv`; returns 0.

    Raises:
        ConfigError: flags that cannot run; known before Ray and torch are imported.
        RelaxError: training failed.
    """
    config = parse_args(argv, prog="relax train")
    refuse_errors(check(config))
    configure_logging()
    from relax_engine.core.train import train

    print(summary(train(config)))
    return 0


def summary(result: RunResult) -> str:
    """The result in a few lines: steps, reward, where everything is."""
    lines = [f"trained {result.new_steps} steps in {result.wall_seconds:.1f} s ({result.steps} in all)"]
    if result.reward_curve:
        lines.append(f"reward      {result.reward_curve[0]:.4f} -> {result.reward_curve[-1]:.4f}")
    if result.losses:
        lines.append(f"loss        {result.losses[0]:.4f} -> {result.losses[-1]:.4f}")
    lines.append(f"checkpoint  {result.checkpoint_dir or 'none (no --save)'}")
    lines.append(f"run         {result.run_dir}")
    return "\n".join(lines)
