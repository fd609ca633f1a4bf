"""`--rm-type random`: a coin toss, for testing pipelines and as a control in experiments."""

from __future__ import annotations

import random
from typing import Any

from relax_engine.types import Sample


def random_reward(args: Any, sample: Sample) -> float:
    """0.0 or 1.0 with equal chance, fixed by the run's `seed` and the sample's indices and response."""
    key = f"{getattr(args, 'seed', 0)}/{sample.group_index}/{sample.index}/{sample.response}"
    return float(random.Random(key).random() < 0.5)
