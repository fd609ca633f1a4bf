"""An environment that answers once, and a reward for the whole exchange."""

from __future__ import annotations

from typing import Any

from relax_engine.rollout.environment import BaseInteractionEnv
from relax_engine.types import Sample


class Again(BaseInteractionEnv):
    def __init__(self) -> None:
        self.turns = 0

    def reset(self) -> Any:
        return {"obs_str": ""}, {}

    async def step(self, response_text: str) -> Any:
        self.turns += 1
        return {"obs_str": "again", "role": "user"}, self.turns == 2, {"turns": self.turns}


def build_env(sample: Any = None, args: Any = None, **_: Any) -> BaseInteractionEnv:
    return Again()


def score(args: Any, sample: Sample) -> float:
    """Different within a group; an exchange without a second turn is an error, unless it was too long."""
    notes = sample.metadata["environment"]
    if notes["turns"] != 2 and notes["stop"] != "length":
        raise ValueError(f"an exchange that ended with {notes}")
    return (sum(sample.tokens) % 11) / 10
