"""The reward: the last line that the model wrote is the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_engine.types import Sample


async def reward_func(args: Any, sample: Sample, **kwargs: Any) -> dict[str, float]:
    """`score` is 1.0 for the right value; `tool_calls` and `turns` are for the metrics."""
    notes = sample.metadata.get("environment", {})
    right = sample.response.strip().rpartition("\n")[2] == sample.label
    return {
        "score": float(right and notes.get("stop") == "done"),
        "tool_calls": float(len(notes.get("tool_rewards", []))),
        "turns": float(notes.get("turns", 0)),
    }
