"""Where the time of a step went: its phases and the lives of its samples, as a Chrome trace and as a straggler report.

What lives here: turning recorded phases and samples into spans. What does not: recording them (`journal.py`,
`rollouts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_engine.observe.journal import read_phases
from relax_engine.observe.rollouts.filters import QueryError
from relax_engine.observe.rollouts.query import Rollouts

_MOST_SAMPLES = 100_000
_SAMPLE_COLUMNS = (
    "sample_index",
    "group_index",
    "started",
    "generated",
    "scored",
    "placed",
    "environment_seconds",
    "response_length",
    "first_version",
)
_STAGES = (("generate", "started", "generated"), ("reward", "generated", "scored"), ("wait", "scored", "placed"))


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
    """The roles' phases of a step, and for each of its prompt groups sampling, reward and the wait for its place.

    Raises:
        QueryError: the run recorded nothing of this step.
    """
    phases = [
        Span(phase["role"], phase["name"], phase["name"], phase["start"], phase["end"], {"step": step})
        for phase in read_phases(run_dir)
        if phase["step"] == step
    ]
    spans = phases + [span for group in _groups(run_dir, step) for span in group.spans]
    if not spans:
        raise QueryError(f"{run_dir} has neither phases nor samples of step {step}")
    return sorted(spans, key=lambda span: span.start)


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


@dataclass(frozen=True, slots=True)
class Straggler:
    """The group of a step whose samples came last, and by how much it held up the one before it.

    Attributes:
        group_index: Which group.
        behind: Seconds between its last sample and that of the group before.
        median_behind: Seconds between its last sample and the median group's.
        stage: `generate`, `environment` or `reward`: in which of them it lost most against the median group.
        slowest_sample: Index of the sample that ended last.
        response_length: Tokens of that sample.
    """

    group_index: int
    behind: float
    median_behind: float
    stage: str
    slowest_sample: int
    response_length: int


def straggler(run_dir: Path, step: int) -> Straggler:
    """Which group held the step.

    Raises:
        QueryError: no samples of this step were recorded with their times, or only one group.
    """
    groups = sorted(_groups(run_dir, step), key=lambda group: group.end)
    if len(groups) < 2:
        raise QueryError(f"{run_dir} has {len(groups)} group(s) with times of step {step}; two at least are compared")
    last, middle = groups[-1], groups[len(groups) // 2]
    lost = {stage: last.longest(stage) - middle.longest(stage) for stage in ("generate", "environment", "reward")}
    slowest = max(last.samples, key=lambda sample: sample["scored"])
    return Straggler(
        last.index,
        last.end - groups[-2].end,
        last.end - middle.end,
        max(lost, key=lambda stage: lost[stage]),
        slowest["sample_index"],
        slowest["response_length"],
    )


@dataclass(frozen=True, slots=True)
class _Group:
    index: int
    samples: list[dict[str, Any]]

    @property
    def end(self) -> float:
        return max(sample["scored"] for sample in self.samples)

    def longest(self, stage: str) -> float:
        """Seconds of the slowest sample in a stage; time in the environment is not the engine's."""
        if stage == "environment":
            return max(sample["environment_seconds"] or 0.0 for sample in self.samples)
        if stage == "reward":
            return max(sample["scored"] - sample["generated"] for sample in self.samples)
        return max(s["generated"] - s["started"] - (s["environment_seconds"] or 0.0) for s in self.samples)

    @property
    def spans(self) -> Iterable[Span]:
        for name, first, last in _STAGES:
            start = min(sample[first] for sample in self.samples)
            end = max(sample[last] for sample in self.samples)
            details = {
                "samples": [sample["sample_index"] for sample in self.samples],
                "longest_response": max(sample["response_length"] for sample in self.samples),
                "weight_version": min(sample["first_version"] for sample in self.samples),
            }
            yield Span("groups", f"group {self.index}", name, start, max(start, end), details)


def _groups(run_dir: Path, step: int) -> list[_Group]:
    with Rollouts(run_dir) as rollouts:
        samples = rollouts.find([f"step={step}"], sort="sample_index", columns=_SAMPLE_COLUMNS, limit=_MOST_SAMPLES)
    groups: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        if None not in (sample["started"], sample["generated"], sample["scored"]):
            groups.setdefault(sample["group_index"], []).append(sample)
    return [_Group(index, members) for index, members in groups.items()]
