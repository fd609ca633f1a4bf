"""An environment of a user: it counts turns, and shows what it was given."""

from __future__ import annotations

from typing import Any

from relax_engine.rollout.environment import BaseInteractionEnv


class Echo(BaseInteractionEnv):
    def __init__(self, sample: Any, args: Any) -> None:
        self.sample, self.args, self.seen = sample, args, []

    def reset(self) -> Any:
        return {"obs_str": "not shown"}, {}

    async def step(self, response_text: str) -> Any:
        self.seen.append(response_text)
        done = len(self.seen) == self.args.done_after
        return {"obs_str": f"turn {len(self.seen)}", "role": "tool"}, 0.5, done, False, {"seen": list(self.seen)}

    def close(self) -> None:
        self.args.closed.append(self.sample.index)


class Careless(Echo):
    async def step(self, response_text: str) -> Any:
        return "half", False


def build_env(sample: Any = None, args: Any = None, **_: Any) -> BaseInteractionEnv:
    return Careless(sample, args) if args.careless else Echo(sample, args)
