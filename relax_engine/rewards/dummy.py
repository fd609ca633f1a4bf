"""`--rm-type dummy`: no reward, for runs that measure speed or take their signal from elsewhere."""

from __future__ import annotations

from typing import Any

from relax_engine.types import Sample


def dummy_reward(args: Any, sample: Sample) -> float:
    """0.0."""
    return 0.0
