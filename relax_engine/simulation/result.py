"""What a simulation gives: means over the steps after the start, as numbers, JSON and text."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from relax_engine.simulation.observations import Observations, Step


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Means over the steps in which the pipeline is full.

    Attributes:
        step_time: Seconds a step.
        wait_time: Seconds of a step in which the trainer waits for samples.
        phase_seconds: Seconds of each phase in a step, overlapping ones included.
        utilization: Busy share of each role. The rollout's is the share of `concurrency` in use, or without a limit
            the share of time with any request.
        staleness: Share of trained groups by lag in weight versions.
        mean_staleness: Their mean.
        steps: Number of steps that were averaged.
    """

    step_time: float
    wait_time: float
    phase_seconds: dict[str, float]
    utilization: dict[str, float]
    staleness: dict[int, float]
    mean_staleness: float
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """A table."""
        lines = [
            f"step time       {self.step_time:10.3f} s",
            f"  trainer waits {self.wait_time:10.3f} s",
            *(f"  {name:13} {seconds:10.3f} s" for name, seconds in self.phase_seconds.items()),
            "utilization",
            *(f"  {name:13} {share:10.1%}" for name, share in self.utilization.items()),
            f"staleness       {self.mean_staleness:10.3f} versions on average",
            *(f"  {lag:<13} {share:10.1%}" for lag, share in self.staleness.items()),
        ]
        return "\n".join(lines)


def summarize(seen: Observations, warmup: int) -> SimulationResult:
    """The result without the first `warmup` steps."""
    start: Step | None = seen.steps[warmup - 1] if warmup else None
    steps, last = seen.steps[warmup:], seen.steps[-1]
    seconds = last.end - (start.end if start else 0.0)
    lags: Counter[int] = sum((step.lags for step in steps), Counter())
    groups = lags.total()
    return SimulationResult(
        step_time=seconds / len(steps),
        wait_time=sum(step.waited for step in steps) / len(steps),
        phase_seconds=_rates(last.phases, start.phases if start else {}, len(steps)),
        utilization=_rates(last.busy, start.busy if start else {}, seconds),
        staleness={lag: count / groups for lag, count in sorted(lags.items())},
        mean_staleness=sum(lag * count for lag, count in lags.items()) / groups,
        steps=len(steps),
    )


def _rates(end: dict[str, float], start: dict[str, float], over: float) -> dict[str, float]:
    return {name: (value - start.get(name, 0.0)) / over for name, value in end.items()}
