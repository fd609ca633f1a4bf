"""Environments around tools of RedAccel: objects with `reset(raw_prompt, multi_modal_data, ...)` and `execute(action)`.

What lives here: such an object as an environment. What does not: tools with schemas (`tools`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from relax_engine.rollout.conversation_media import opened_media
from relax_engine.rollout.environment import BaseInteractionEnv, Observation
from relax_engine.rollout.pool import RolloutError
from relax_engine.types import Sample


class ActionTool:
    """Base of such tools; one object per sample."""

    name = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take whatever a tool hands on."""

    def reset(self, raw_prompt: Any, multi_modal_data: Any, origin_multi_modal_data: Any = None, **kwargs: Any) -> Any:
        """Begin with a sample."""

    def execute(self, action_string: str, **kwargs: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Take a turn of the model: `(observation, reward, done, info)`."""
        raise NotImplementedError(f"{type(self).__name__} has no execute")


class ActionEnvironment(BaseInteractionEnv):
    """Hands each response to the tool, and its observation back."""

    def __init__(self, kind: type[ActionTool], sample: Sample, max_turns: int) -> None:
        """Serve `sample`, whose prompt and media the tool begins with.

        The tool is made with None for what its constructor requires: names and descriptions for a registry.
        """
        required = [
            each.name
            for each in inspect.signature(kind).parameters.values()
            if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        ]
        self.tool = kind(**dict.fromkeys(required))
        self.sample, self.max_turns = sample, max_turns
        self._turns = 0

    async def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Begin."""
        media = opened_media(self.sample)
        await _finished(_called(self.tool.reset, (self.sample.prompt, media, media), self.sample.metadata))
        return {"obs_str": ""}, {}

    async def step(self, response_text: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One turn."""
        self._turns += 1
        result = await _finished(self.tool.execute(response_text))
        if not isinstance(result, tuple) or len(result) != 4:
            raise RolloutError(
                f"execute of {type(self.tool).__name__} returned {result!r:.200}, not (observation, reward, done, info)"
            )
        shown, reward, done, info = result
        return observation(shown), float(reward or 0.0), bool(done), self._turns >= self.max_turns, dict(info or {})


def observation(shown: Any) -> dict[str, Any]:
    """What a tool shows: text, a message or several, or a dictionary of text and media."""
    if isinstance(shown, list):
        parts = [observation(message) for message in shown]
        media: dict[str, list[Any]] = {}
        for part in parts:
            for kind, items in part["multi_modal_data"].items():
                media.setdefault(kind, []).extend(items)
        text = "\n".join(part["obs_str"] for part in parts if part["obs_str"])
        return {"obs_str": text, "role": parts[-1]["role"] if parts else "user", "multi_modal_data": media}
    if not isinstance(shown, Mapping):
        return {"obs_str": "" if shown is None else str(shown), "role": "user", "multi_modal_data": {}}
    content = next((shown[key] for key in ("obs_str", "text", "content", "chat", "prompt") if key in shown), "")
    inner = observation(content)
    return {
        "obs_str": inner["obs_str"],
        "role": str(shown.get("role", inner["role"])),
        "multi_modal_data": shown.get("multi_modal_data") or inner["multi_modal_data"],
    }


def _called(function: Any, arguments: tuple[Any, ...], extra: Mapping[str, Any]) -> Any:
    """Call with those of the arguments and keywords that the function takes."""
    parameters = list(inspect.signature(function).parameters.values())
    plain = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    taken = plain[: len(arguments)]
    keywords = {name: value for name, value in extra.items() if name not in taken}
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        keywords = {name: value for name, value in keywords.items() if name in plain}
    return function(*arguments[: len(taken)], **keywords)


async def _finished(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
