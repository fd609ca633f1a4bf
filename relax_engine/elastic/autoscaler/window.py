"""The last minutes of metrics, and what can be asked of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from relax_engine.elastic.autoscaler.histogram import Histogram
from relax_engine.elastic.autoscaler.prometheus import EngineMetrics


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at all engines."""

    at: float
    """Seconds of a monotonic clock."""
    metrics: Mapping[str, EngineMetrics]
    """By URL, of the engines that answered."""
    silent: Sequence[str] = ()
    """Engines that serve but gave no metrics."""
    engines: int = 0
    """Engines of the model that are there or on their way in, those that leave excluded."""
    initial: int = 0
    """Engines that the run started with, which stay."""
    changing: bool = False
    """Whether engines are joining or leaving."""

    @property
    def usage(self) -> float:
        """Mean token usage of the engines that answered."""
        return sum(one.token_usage for one in self.metrics.values()) / len(self.metrics) if self.metrics else 0.0

    @property
    def queued(self) -> float:
        """Waiting requests of all engines."""
        return sum(one.queued for one in self.metrics.values())

    @property
    def throughput(self) -> float:
        """Generated tokens per second of all engines."""
        return sum(one.throughput for one in self.metrics.values())


@dataclass(slots=True)
class Window:
    """Observations, oldest first, of the last `memory` seconds."""

    memory: float
    longest_gap: float
    observations: deque[Observation] = field(default_factory=deque)

    def add(self, observation: Observation) -> None:
        """Append one, and forget those that nobody asks about any more."""
        self.observations.append(observation)
        while self.observations[0].at < observation.at - self.memory:
            self.observations.popleft()

    @property
    def latest(self) -> Observation | None:
        """The newest one."""
        return self.observations[-1] if self.observations else None

    def last(self, seconds: float) -> list[Observation]:
        """Those of the last `seconds` before the newest, oldest first."""
        return [one for one in self.observations if one.at >= self.observations[-1].at - seconds]

    def unbroken(self, holds: Callable[[Observation], bool]) -> list[Observation]:
        """The newest observations that all satisfy `holds`, without a gap between them, oldest first."""
        run: list[Observation] = []
        for observation in reversed(self.observations):
            if not holds(observation) or (run and run[-1].at - observation.at > self.longest_gap):
                break
            run.append(observation)
        return run[::-1]

    def percentile(self, histogram: Callable[[EngineMetrics], Histogram], seconds: float, share: float) -> float | None:
        """The percentile over the last `seconds` and all engines; None where nothing was observed."""
        if not self.observations:
            return None
        newest = self.observations[-1]
        first: dict[str, Histogram] = {}
        for observation in self.last(seconds):
            for url, metrics in observation.metrics.items():
                first.setdefault(url, histogram(metrics))
        total = Histogram()
        for url, metrics in newest.metrics.items():
            total = total + histogram(metrics).since(first[url])
        return total.percentile(share)


def variation(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 where all values are 0."""
    mean = sum(values) / len(values)
    if mean == 0:
        return 0.0
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) / mean


def span(observations: Sequence[Observation]) -> float:
    """Seconds from the first to the last; -1 without any, so that no duration, not even 0, has passed."""
    return observations[-1].at - observations[0].at if observations else -1.0
