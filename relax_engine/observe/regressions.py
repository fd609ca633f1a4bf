"""Metrics that somebody watches: when one has become worse than it was.

What lives here: the judgement. What does not: who is told (`notify.py`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relax_engine.errors import ConfigError
from relax_engine.observe.definitions import definition

WINDOW = 10
"""Steps of which the mean is taken."""

_ERRORS = 5.0
_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Regression:
    """A metric whose mean over the last `WINDOW` steps is worse than the best such mean before."""

    name: str
    best: float
    now: float
    step: int


class Watched:
    """One metric, step by step.

    It is worse when its mean over the last ten steps lies behind the best mean of ten steps in a row by more than
    five standard errors of that difference (the best of many means is a lucky one), and by more than a twentieth of the
    best. It is told once, and again only after it had recovered half of the way.

    Trace with mean 0.6 at best::

        0.6 0.6 ... 0.1   mean 0.55   not by five standard errors
        0.1 ten times     mean 0.1    told
        0.2               -           not told again
        0.5 ten times     mean 0.5    recovered
    """

    def __init__(self, name: str) -> None:
        """Raises `ConfigError` where neither direction of `name` is better."""
        known = definition(name)
        if known is None or not known.better:
            raise ConfigError(
                f"{name!r} cannot be watched: docs/metrics.md does not say whether higher or lower values are better"
            )
        self.name = name
        self._sign = 1.0 if known.better == "higher" else -1.0
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._best: tuple[float, float] | None = None  # mean times sign, and variance of the mean
        self._told = False

    def add(self, step: int, value: float) -> Regression | None:
        """The regression, at the step that shows it."""
        if not math.isfinite(value):
            return None
        self._last.append(self._sign * value)
        if len(self._last) < WINDOW:
            return None
        mean = sum(self._last) / WINDOW
        variance = sum((one - mean) ** 2 for one in self._last) / (WINDOW - 1) / WINDOW
        if self._best is None or mean > self._best[0]:
            self._best = (mean, variance)
        best, best_variance = self._best
        allowed = max(_ERRORS * math.sqrt(variance + best_variance), _SHARE * abs(best))
        behind = best - mean
        if behind <= allowed / 2:
            self._told = False
        if behind <= allowed or self._told:
            return None
        self._told = True
        return Regression(self.name, self._sign * best, self._sign * mean, step)


def regressions(watched: Iterable[Watched], step: int, metrics: Mapping[str, float]) -> list[Regression]:
    """Those that the metrics of `step` show."""
    found = [one.add(step, float(metrics[one.name])) for one in watched if one.name in metrics]
    return [regression for regression in found if regression is not None]
