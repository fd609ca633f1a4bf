"""When the samples of a step came how far, by prompt group: what traces and the straggler report are made of.

What lives here: reading recorded times. What does not: recording them (`rollouts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_engine.observe.rollouts.query import Rollouts

STAGES = (
    ("admission", "admitted", "started"),
    ("generate", "started", "generated"),
    ("reward", "generated", "scored"),
    ("wait", "scored", "placed"),
    ("trainer_wait", "placed", "trained"),
)
"""Stretches of a sample's life, in order: their names, and the times between which they lie."""

_MOST_SAMPLES = 100_000
_COLUMNS = (
    "sample_index",
    "group_index",
    "engine",
    "admitted",
    "started",
    "generated",
    "scored",
    "placed",
    "trained",
    "environment_seconds",
    "response_length",
    "status",
    "reward",
    "first_version",
    "age",
)


@dataclass(frozen=True, slots=True)
class GroupLife:
    """A prompt group and its samples, as dictionaries of the recorded columns; times in seconds since the epoch."""

    index: int
    samples: list[dict[str, Any]]

    @property
    def start(self) -> float:
        """When sampling of its first sample began."""
        return float(min(sample["started"] for sample in self.samples))

    @property
    def end(self) -> float:
        """When the last sample was scored."""
        return float(max(sample["scored"] for sample in self.samples))

    @property
    def slowest(self) -> dict[str, Any]:
        """The sample that was scored last."""
        return max(self.samples, key=lambda sample: float(sample["scored"]))

    def longest(self, stage: str) -> float:
        """Seconds of the slowest sample in `generate`, `environment` or `reward`.

        Time in the environment is not the engine's.
        """
        if stage == "environment":
            return max(sample["environment_seconds"] or 0.0 for sample in self.samples)
        if stage == "reward":
            return float(max(sample["scored"] - sample["generated"] for sample in self.samples))
        return float(max(s["generated"] - s["started"] - (s["environment_seconds"] or 0.0) for s in self.samples))


def stretches(sample: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Name, start and end of each stretch of the sample's life whose ends were recorded."""
    for name, first, last in STAGES:
        if sample[first] is not None and sample[last] is not None:
            yield name, sample[first], max(sample[first], sample[last])


def step_groups(run_dir: Path, step: int) -> list[GroupLife]:
    """The groups of a step whose samples have times; none in a run that records no samples."""
    if not (run_dir / "rollouts").is_dir():
        return []
    with Rollouts(run_dir) as rollouts:
        samples = rollouts.find([f"step={step}"], sort="sample_index", columns=_COLUMNS, limit=_MOST_SAMPLES)
    groups: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        if None not in (sample["started"], sample["generated"], sample["scored"]):
            groups.setdefault(sample["group_index"], []).append(sample)
    return [GroupLife(index, members) for index, members in groups.items()]
