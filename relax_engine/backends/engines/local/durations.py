"""What the scheduler measures about time: durations in buckets, and a rate that forgets."""

from __future__ import annotations

import time
from bisect import bisect_left

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Upper bounds of the buckets in seconds; one more is without bound."""

_SHORTEST_S = 1.0


class DurationHistogram:
    """Counts of durations by bucket. One thread observes; another may read, and sees counts of about the same time."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def rows(self, name: str, text: str) -> list[str]:
        """The lines of Prometheus' text format."""
        lines, total = [f"# HELP {name} {text}", f"# TYPE {name} histogram"], 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), list(self._counts), strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._sum:.6f}", f"{name}_count {total}"]


class RecentRate:
    """The growth of a counter per second, between two looks at it that are at least a second apart."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._count = 0
        self._rate = 0.0

    def update(self, count: int) -> float:
        """The rate up to now, where the last look is long enough ago, else up to that look."""
        now = time.monotonic()
        if now - self._at >= _SHORTEST_S:
            self._rate = max(0, count - self._count) / (now - self._at)
            self._at, self._count = now, count
        return self._rate
