"""The contract of environments: what a sample's turns act on.

    def build_env(sample=None, args=None, **_) -> BaseInteractionEnv

What lives here: the base class, and finding `build_env`. What does not: the turns (`multi_turn`), and environments made
of tools (`tools`).
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relax_engine.rollout.pool import RolloutError
from relax_engine.types import Message
from relax_engine.utils.hooks import load_function, load_module

Observation = Mapping[str, Any]
"""`{"obs_str": text, "role": "user", "multi_modal_data": {"image": [...]}}`; all but the text may be missing."""

_TOOLBOX = "relax_engine.rollout.toolbox"
_ROLES = ("user", "assistant", "tool", "system")


class BaseInteractionEnv(ABC):
    """What one sample interacts with. One object per sample, made by `build_env`, and closed whatever happens.

    Methods may be coroutines; those that are not run in a thread, so that one that computes holds up no other sample.
    """

    @abstractmethod
    def reset(self) -> Any:
        """Begin; returns `(observation, info)`, which nobody shows the model: the prompt is the first observation."""

    @abstractmethod
    def step(self, response_text: str) -> Any:
        """Take one turn of the model.

        Returns:
            `(observation, done, info)`, or Gym's `(observation, reward, terminated, truncated, info)`.
        """

    def format_observation(self, observation: Observation) -> Message | list[Message]:
        """An observation as the next chat message or messages, media before the text."""
        role = str(observation.get("role", "user"))
        media = observation.get("multi_modal_data") or {}
        text = str(observation.get("obs_str", ""))
        parts = [{"type": kind} for kind, items in media.items() for _ in items]
        content: Any = [*parts, {"type": "text", "text": text}] if parts else text
        return {"role": role if role in _ROLES else "user", "content": content}

    def close(self) -> Any:
        """Release what the environment holds."""
        return None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What `step` returned, whichever of its forms; `reward` is None where it has none."""

    observation: Observation
    done: bool
    info: dict[str, Any] = field(default_factory=dict)
    reward: float | None = None


def step_result(value: Any) -> StepResult:
    """Read what `step` returned.

    Raises:
        RolloutError: it has neither form.
    """
    match value:
        case (observation, done, info):
            reward = None
        case (observation, reward, terminated, truncated, info):
            done = terminated or truncated
        case _:
            observation, done, reward, info = value, False, None, {}
    if isinstance(observation, str):
        observation = {"obs_str": observation}
    if not isinstance(value, tuple) or not isinstance(observation, Mapping):
        raise RolloutError(
            f"step returned {value!r:.200}; return (observation, done, info) or (observation, reward, terminated, "
            "truncated, info), the observation as {'obs_str': text}"
        )
    return StepResult(observation, bool(done), dict(info or {}), None if reward is None else float(reward))


async def call(function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
    """Call a method of an environment, a coroutine or not.

    Raises:
        TimeoutError: it takes longer than `timeout_s` seconds; a thread goes on until it returns.
    """
    async with asyncio.timeout(timeout_s):
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        result = await asyncio.to_thread(function, *arguments)
        return await result if inspect.isawaitable(result) else result


def load_build_env(module: str) -> Callable[..., BaseInteractionEnv]:
    """`build_env` of a module, by dotted name or file; where it has none, its one class of an environment.

    Such a class is made without arguments, and then has the attributes `sample`, `args`, and `max_turns` of `args`.

    Raises:
        ValueError: the module has neither.
        ImportError: it cannot be imported.
    """
    names = vars(load_module(module))
    if getattr(names.get("build_env"), "__module__", _TOOLBOX) != _TOOLBOX:
        return load_function(f"{module}:build_env")
    kinds = [
        value
        for value in names.values()
        if isinstance(value, type) and issubclass(value, BaseInteractionEnv) and value.__module__ == names["__name__"]
    ]
    if len(kinds) != 1:
        return load_function(f"{module}:build_env")

    def build_env(sample: Any = None, args: Any = None, **_: Any) -> BaseInteractionEnv:
        environment = kinds[0]()
        attributes = {"sample": sample, "args": args, "max_turns": getattr(args, "max_turns", 1)}
        vars(environment).update(attributes)
        return environment

    return build_env
