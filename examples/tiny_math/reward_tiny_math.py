"""The demo's reward: the response must be the word spelled backward, letter for letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_engine.types import Sample


async def reward_func(args: Any, sample: Sample, **kwargs: Any) -> float:
    """1.0 if the response, without surrounding white space, is the label; else 0.0."""
    return float(sample.response.strip() == sample.label)
