"""Where the time of a step went: its phases and the lives of its groups, as a Chrome trace.

What lives here: turning recorded phases and times into spans. What does not: recording them (`journal.py`,
`rollouts`), and spans of single samples for OpenTelemetry (`otlp.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_engine.observe.journal import read_phases
from relax_engine.observe.lives import STAGES, GroupLife, step_groups, stretches
from relax_engine.observe.rollouts.filters import QueryError


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in seconds since the epoch. `track` is who it belongs to, `lane` a line of it."""

    track: str
    lane: str
    name: str
    start: float
    end: float
    details: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.start


def step_spans(run_dir: Path, step: int) -> list[Span]:
    """The roles' phases of a step, and for each of its prompt groups what it passed from admission to training.

    Raises:
        QueryError: the run recorded nothing of this step.
    """
    spans = phases(run_dir, step) + [span for group in step_groups(run_dir, step) for span in _group_spans(group)]
    if not spans:
        raise QueryError(f"{run_dir} has neither phases nor samples of step {step}")
    return sorted(spans, key=lambda span: span.start)


def phases(run_dir: Path, step: int) -> list[Span]:
    """What the roles did for a step."""
    return [
        Span(phase["role"], phase["name"], phase["name"], phase["start"], phase["end"], {"step": step})
        for phase in read_phases(run_dir)
        if phase["step"] == step
    ]


def chrome_trace(spans: Sequence[Span]) -> dict[str, Any]:
    """The spans in the Trace Event Format, which chrome://tracing and ui.perfetto.dev open; times in microseconds."""
    origin = min(span.start for span in spans)
    tracks = {name: number for number, name in enumerate(sorted({span.track for span in spans}), start=1)}
    lanes: dict[tuple[str, str], int] = {}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}} for name, number in tracks.items()
    ]
    for span in spans:
        key = (span.track, span.lane)
        if key not in lanes:
            lanes[key] = len(lanes) + 1
            thread = {"pid": tracks[span.track], "tid": lanes[key], "args": {"name": span.lane}}
            events.append({"ph": "M", "name": "thread_name", **thread})
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "pid": tracks[span.track],
                "tid": lanes[key],
                "ts": round((span.start - origin) * 1e6),
                "dur": round(span.seconds * 1e6),
                "args": dict(span.details),
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"origin_seconds": origin}}


def _group_spans(group: GroupLife) -> Iterator[Span]:
    """One span a stage: from the first sample that began it to the last that ended it."""
    details = {
        "samples": [sample["sample_index"] for sample in group.samples],
        "longest_response": max(sample["response_length"] for sample in group.samples),
        "weight_version": min(sample["first_version"] for sample in group.samples),
        "engines": sorted({sample["engine"] for sample in group.samples if sample["engine"]}),
    }
    lived = [stretch for sample in group.samples for stretch in stretches(sample)]
    for stage, _, _ in STAGES:
        times = [(start, end) for name, start, end in lived if name == stage]
        if times:
            start, end = min(start for start, _ in times), max(end for _, end in times)
            yield Span("groups", f"group {group.index}", stage, start, end, details)
