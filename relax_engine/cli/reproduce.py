"""`relax reproduce RUN`: train again as a run did, and print how the two agree."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from relax_engine.utils.logging import configure_logging

if TYPE_CHECKING:
    from relax_engine.core.reproduce import Reproduction


def main(argv: list[str]) -> int:
    """Print one line per quantity and what differs in the environment.

    Returns 1 where a run with `--deterministic` did not repeat itself, else 0.

    Raises:
        ReproduceError: there is no such run, or what it was made from is gone.
        RelaxError: training failed.
    """
    parser = argparse.ArgumentParser(
        prog="relax reproduce",
        description="Train again as a recorded run did, from the beginning, and compare losses, gradient norms and "
        "rewards step by step.",
    )
    parser.add_argument("run", help="a run's directory, or its reference in the artifact store (my-model-run@v3)")
    parser.add_argument("--run-dir", required=True, metavar="DIR", help="where the new run goes")
    parser.add_argument("--store", metavar="URL", help="artifact store (default: $RELAX_ARTIFACTS, else ./artifacts)")
    options = parser.parse_args(argv)
    configure_logging()
    from relax_engine.core.reproduce import reproduce

    found = reproduce(options.run, options.run_dir, store_url=options.store)
    print(table(found))
    return int(found.deterministic and not found.identical)


def table(found: Reproduction) -> str:
    """The comparison as text."""
    lines = [f"{'quantity':<20} {'steps':>5}  {'largest difference':<18}  first at step"]
    lines += [
        f"{a.quantity:<20} {a.steps:>5}  {a.largest:<18.3g}  {'-' if a.first is None else a.first}"
        for a in found.agreements
    ]
    lines += [f"environment: {line}" for line in found.environment or ["the same"]]
    verdict = "identical, bit by bit" if found.identical else "different"
    return "\n".join([*lines, f"the runs are {verdict}; the new one is in {found.run_dir}"])
