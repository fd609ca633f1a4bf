"""Whether one model is better than another on the same prompts, or only luckier: a paired bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
_RESAMPLES = 9999


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean difference of paired scores, and the bounds that hold it with probability `CONFIDENCE`."""

    difference: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.difference:+.3f} ({CONFIDENCE:.0%} between {self.low:+.3f} and {self.high:+.3f})"


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """The mean of `ours - theirs` over prompts, with percentile bounds (Efron and Tibshirani 1993, chapter 13).

    Prompts are drawn with replacement, each with both of its scores: what makes a prompt hard for both models does not
    count as noise. The draws are seeded: the same scores always give the same bounds. One prompt bounds nothing.

    Raises:
        ValueError: the scores are not of the same prompts, or of none.
    """
    if len(ours) != len(theirs) or len(ours) == 0:
        raise ValueError(f"cannot pair {len(ours)} scores with {len(theirs)}: give those of the same prompts")
    if len(ours) == 1:
        return Comparison(ours[0] - theirs[0], -math.inf, math.inf)
    import numpy as np
    from scipy.stats import bootstrap

    differences = np.asarray(ours) - np.asarray(theirs)
    interval = bootstrap(
        (differences,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Comparison(float(differences.mean()), float(interval.low), float(interval.high))
