"""`relax replay BUNDLE`: recompute what a run recorded, and print the largest differences."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relax_engine.core.replay import Difference


def main(argv: list[str]) -> int:
    """Print one line per quantity; returns 1 where one differs by more than the tolerance, else 0.

    Raises:
        BundleError: the directory is no bundle, or has no such rollout.
        RewardError: a reward function failed.
    """
    parser = argparse.ArgumentParser(
        prog="relax replay",
        description="Recompute rewards, advantages and losses of a recorded run (--dump-details), without Ray, engines "
        "or a model, and compare.",
    )
    parser.add_argument("bundle", help="directory that --dump-details named")
    parser.add_argument("--rollout-id", type=int, nargs="+", metavar="N", help="only these rollouts (default: all)")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest accepted difference (%(default)g)")
    options = parser.parse_args(argv)
    from relax_engine.core.replay import replay

    found = replay(options.bundle, options.rollout_id)
    print(table(found, options.tolerance))
    return int(any(difference.largest > options.tolerance for difference in found))


def table(found: list[Difference], tolerance: float) -> str:
    """The differences as text, those beyond the tolerance marked."""
    lines = [f"{'rollout':>7}  {'quantity':<24} {'values':>7}  {'largest difference':<18}  where"]
    for difference in found:
        mark = "  <-- DIFFERS" if difference.largest > tolerance else ""
        where = f"{difference.where}: recorded {difference.recorded:.6g}, recomputed {difference.recomputed:.6g}"
        lines.append(
            f"{difference.rollout_id:>7}  {difference.quantity:<24} {difference.compared:>7}  "
            f"{difference.largest:<18.3g}  {where if difference.largest else '-'}{mark}"
        )
    worst = max((difference.largest for difference in found), default=0.0)
    verdict = "differs" if worst > tolerance else "agrees"
    return "\n".join([*lines, f"the replay {verdict} with the run (largest difference {worst:.3g})"])
