"""How long a piece of work takes: constant, spread, or as measured; and what more devices do to it."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Timing(BaseModel):
    """Durations of one kind of work, in seconds.

    A bare number stands for a constant, a list of numbers for `samples`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float = Field(default=0.0, ge=0, description="Mean duration.")
    sigma: float = Field(default=0.0, ge=0, description="Spread: standard deviation of the logarithm (log-normal).")
    samples: tuple[float, ...] = Field(default=(), description="Measured durations, taken in turn instead.")
    devices: int | None = Field(
        default=None, ge=1, description="Devices on which the durations hold; without them they hold on any number."
    )
    fixed: float = Field(default=0.0, ge=0, le=1, description="Share that more devices do not shorten (Amdahl).")

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            return {"seconds": value}
        return {"samples": value} if isinstance(value, list | tuple) else value

    @property
    def mean(self) -> float:
        """Mean duration on the devices it was given for."""
        return math.fsum(self.samples) / len(self.samples) if self.samples else self.seconds

    def scale(self, devices: int | None) -> float:
        """Factor on `devices` devices; 1 where either number is not known."""
        return 1.0 if not devices or not self.devices else self.fixed + (1.0 - self.fixed) * self.devices / devices


class Draws:
    """Durations, one after the other.

    Measured ones come in the order of their measurement, over and over: what was slow together stays together. Others
    are constant or random.
    """

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        self._position: Counter[str] = Counter()

    def next(self, name: str, timing: Timing, devices: int | None = None) -> float:
        """The next duration of the work `name` on `devices` devices."""
        if timing.samples:
            seconds = timing.samples[self._position[name] % len(timing.samples)]
            self._position[name] += 1
        elif timing.sigma and timing.seconds:
            seconds = self._source.lognormvariate(math.log(timing.seconds) - timing.sigma**2 / 2, timing.sigma)
        else:
            seconds = timing.seconds
        return seconds * timing.scale(devices)


NOTHING = Timing(seconds=0.0)
"""Work that takes no time."""
