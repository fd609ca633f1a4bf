"""Histograms of durations as engines report them: differences, sums and percentiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Histogram:
    """`cumulative[bound]` observations were at most `bound` seconds; the largest bound is infinity."""

    cumulative: Mapping[float, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Number of observations."""
        return max(self.cumulative.values(), default=0.0)

    def since(self, earlier: Histogram) -> Histogram:
        """What was observed after `earlier`; all of it if the engine has started anew since then."""
        change = {bound: count - earlier.cumulative.get(bound, 0.0) for bound, count in self.cumulative.items()}
        return self if any(count < 0 for count in change.values()) else Histogram(change)

    def __add__(self, other: Histogram) -> Histogram:
        """Both together; they must have the same bounds, unless one is empty."""
        bounds = self.cumulative.keys() | other.cumulative.keys()
        return Histogram(
            {bound: self.cumulative.get(bound, 0.0) + other.cumulative.get(bound, 0.0) for bound in bounds}
        )

    def percentile(self, share: float) -> float | None:
        """The duration that `share` (0 to 1) of the observations do not exceed, None without observations.

        Interpolated linearly inside a bucket, as by Prometheus' `histogram_quantile`; an observation beyond the last
        finite bound counts as that bound.
        """
        if self.total <= 0:
            return None
        rank = share * self.total
        low, below = 0.0, 0.0
        for bound in sorted(self.cumulative):
            count = self.cumulative[bound]
            if count >= rank and count > below:
                return low if bound == float("inf") else low + (bound - low) * (rank - below) / (count - below)
            low, below = bound, count
        return low
