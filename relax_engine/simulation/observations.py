"""What a simulation observes: the steps, the busy time of every role, and lags."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Observations:
    """Filled while the simulation runs. Busy times are cumulative, so that a window is a difference."""

    busy: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of work by role."""
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by phase."""
    steps: list[Step] = field(default_factory=list)

    def work(self, role: str, phase: str, seconds: float) -> float:
        """Account for work of a role that begins now; returns its duration, to be slept."""
        self.busy[role] += seconds
        self.phases[phase] += seconds
        return seconds

    def end_step(self, now: float, waited: float, lags: Iterable[int]) -> None:
        """A step ended."""
        self.steps.append(Step(now, waited, Counter(lags), dict(self.busy), dict(self.phases)))


@dataclass(frozen=True, slots=True)
class Step:
    """The state at the end of one step."""

    end: float
    waited: float
    """Seconds in which the trainer had nothing to do."""
    lags: Counter[int]
    """Groups of the step by lag."""
    busy: dict[str, float]
    phases: dict[str, float]
