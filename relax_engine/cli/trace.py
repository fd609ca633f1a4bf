"""`relax trace RUN`: where the time of a step went, as a Chrome / Perfetto trace, and which group held it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from relax_engine.utils.redact import redact


def main(argv: list[str]) -> int:
    """Write the trace, and print the straggler.

    Raises:
        QueryError: nothing was recorded of the step.
        ExportError: the collector did not take the spans.
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
    parser.add_argument(
        "--otlp", metavar="URL", help="send every sample's spans to an OpenTelemetry collector too (http://HOST:4318)"
    )
    options = parser.parse_args(argv)
    from relax_engine.observe.otlp import SpanSender
    from relax_engine.observe.rollouts.filters import QueryError
    from relax_engine.observe.rollouts.query import Rollouts
    from relax_engine.observe.spans import chrome_trace, step_spans
    from relax_engine.observe.stragglers import straggler

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
    if options.otlp is not None:
        sender = SpanSender(options.otlp, options.run)
        print(f"{sender.send(step)} spans sent to {redact(options.otlp)}")
        sender.close()
    print(straggler(options.run, step).sentence())
    return 0
