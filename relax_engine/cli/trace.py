"""`relax trace RUN`: where the time of a step went, as a Chrome / Perfetto trace, and which group held it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main(argv: list[str]) -> int:
    """Write the trace, and print the straggler.

    Raises:
        QueryError: nothing was recorded of the step.
    """
    parser = argparse.ArgumentParser(
        prog="relax trace",
        description="Where the time of a step went: a file for ui.perfetto.dev or chrome://tracing, and which prompt "
        "group held the step.",
    )
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--step", type=int, metavar="N", help="which step (default: the last that was recorded)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: timeline_step_N.json in the run directory"
    )
    options = parser.parse_args(argv)
    from relax_engine.observe.rollouts.filters import QueryError
    from relax_engine.observe.rollouts.query import Rollouts
    from relax_engine.observe.spans import chrome_trace, step_spans, straggler

    step = options.step
    if step is None:
        with Rollouts(options.run) as rollouts:
            step = rollouts.last_step()
    if step is None:
        raise QueryError(f"{options.run} has recorded no step yet")
    spans = step_spans(options.run, step)
    path = options.output or options.run / f"timeline_step_{step}.json"
    path.write_text(json.dumps(chrome_trace(spans)))
    print(f"{len(spans)} spans of step {step} over {max(s.end for s in spans) - spans[0].start:.3f} s: {path}")
    found = straggler(options.run, step)
    print(
        f"group {found.group_index} came last, {found.behind:.3f} s after the one before and "
        f"{found.median_behind:.3f} s after the median; it lost most in {found.stage} (sample {found.slowest_sample}, "
        f"{found.response_length} tokens)"
    )
    return 0
