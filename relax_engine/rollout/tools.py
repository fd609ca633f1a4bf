"""An environment made of tools that the model calls with `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Tools have verl's methods (`create`, `execute`, `calc_reward`, `release`), so that migrated ones work as they are. What
lives here: tools, and turning a response into calls and answers. What does not: the contract of environments
(`environment`), and tools of RedAccel (`action_tools`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from relax_engine.rollout.environment import BaseInteractionEnv, Observation
from relax_engine.types import Message, Sample

logger = logging.getLogger(__name__)

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class FunctionSchema(BaseModel):
    """Name, description and JSON schema of the parameters of one tool."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class ToolSchema(BaseModel):
    """A tool as chat templates show it to the model (OpenAI's form)."""

    type: str = "function"
    function: FunctionSchema


@dataclass(slots=True)
class ToolResponse:
    """What a tool answers."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Whether there is text and nothing else."""
        return bool(self.text) and not (self.image or self.video)


class Tool:
    """Base of tools. One object serves all samples of a process; `instance_id` names the sample's state in it."""

    def __init__(self, config: dict[str, Any], tool_schema: ToolSchema | None) -> None:
        """Set up from the tool's entry in its YAML file."""
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> ToolSchema:
        """The schema; a tool without one in its YAML file makes it here."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin with a sample; `kwargs` are the row's `tools_kwargs.<name>.create_kwargs`."""
        return instance_id or str(uuid.uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Answer a call: `(response, reward of the step, metrics)`."""
        raise NotImplementedError(f"{type(self).__name__} has no execute")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """The reward of the state at the end of a sample."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget a sample."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """How far tools go: turns of the model, calls answered in a turn, characters of an answer, and which side of a
    longer one is left out (`left`, `right` or `middle`)."""

    max_turns: int
    max_parallel_calls: int = 1
    max_tool_response_length: int = 256
    tool_response_truncate_side: str = "middle"

    @classmethod
    def from_args(cls, args: Any) -> ToolLimits:
        """From keys of these names in `--custom-config-path`."""
        given = {name: getattr(args, name, None) for name in cls.__slots__}
        return cls(**{name: value for name, value in given.items() if value is not None})


class ToolEnvironment(BaseInteractionEnv):
    """Answers calls of tools until a response calls none.

    `info` of the last step has `rollout_reward_scores`, what each tool's `calc_reward` says; of every step
    `tool_rewards`, the rewards of all calls so far.
    """

    def __init__(self, tools: Sequence[Tool], limits: ToolLimits, sample: Sample) -> None:
        """Serve `sample`; its metadata, or `extra_info` in them, may have `tools_kwargs`."""
        self.tools = {tool.name: tool for tool in tools}
        self.limits = limits
        extra = sample.metadata.get("extra_info")
        named = sample.metadata.get("tools_kwargs") or (extra if isinstance(extra, Mapping) else {}).get("tools_kwargs")
        self.tools_kwargs: Mapping[str, Any] = named or {}
        self._instances: dict[str, str] = {}
        self._rewards: list[float] = []
        self._turns = 0

    async def reset(self) -> tuple[Observation, dict[str, Any]]:
        """Begin with every tool."""
        for name, tool in self.tools.items():
            given = dict((self.tools_kwargs.get(name) or {}).get("create_kwargs") or {})
            known = inspect.signature(tool.create).parameters
            if any(each.kind is each.VAR_KEYWORD for each in known.values()):
                given = {"create_kwargs": dict(given), **given}
            else:
                given = {key: value for key, value in given.items() if key in known}
            self._instances[name], _ = await tool.create(str(uuid.uuid4()), **given)
        return {"obs_str": ""}, {}

    async def step(self, response_text: str) -> tuple[Observation, bool, dict[str, Any]]:
        """Answer the calls of a response."""
        self._turns += 1
        calls = _CALL.findall(response_text)
        if not calls or self._turns >= self.limits.max_turns:
            scores = {name: await tool.calc_reward(self._instances[name]) for name, tool in self.tools.items()}
            return {"obs_str": ""}, True, {"tool_rewards": self._rewards, "rollout_reward_scores": scores}
        answers = await asyncio.gather(*map(self._answer, calls[: self.limits.max_parallel_calls]))
        media: dict[str, list[Any]] = {}
        for answer in answers:
            for kind, items in (("image", answer.image), ("video", answer.video)):
                if items:
                    media.setdefault(kind, []).extend(items)
        texts = [self._cut(answer.text or "") for answer in answers]
        observation = {"obs_str": "\n".join(texts), "role": "tool", "answers": texts, "multi_modal_data": media}
        return observation, False, {"tool_rewards": self._rewards}

    async def _answer(self, text: str) -> ToolResponse:
        try:
            call = json.loads(text)
            name, arguments = call["name"], call.get("arguments") or {}
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return ToolResponse(f"Error: a call is a JSON object with name and arguments ({type(error).__name__})")
        if not isinstance(arguments, dict) or name not in self.tools:
            known = ", ".join(self.tools)
            return ToolResponse(f"Error: there is no tool {name!r}; there are: {known}")
        given = (self.tools_kwargs.get(name) or {}).get("execute_kwargs") or {}
        try:
            response, reward, _ = await self.tools[name].execute(self._instances[name], arguments, **given)
        except Exception as error:  # noqa: BLE001 - arguments are the model's, and it is told what was wrong with them
            logger.warning("tool %s failed: %r", name, error)
            return ToolResponse(f"Error when executing tool: {error}")
        self._rewards.append(float(reward or 0.0))
        return response if isinstance(response, ToolResponse) else ToolResponse(str(response))

    def _cut(self, text: str) -> str:
        most = self.limits.max_tool_response_length
        if len(text) <= most:
            return text
        side = self.limits.tool_response_truncate_side
        if side == "left":
            return f"(truncated)...{text[-most:]}"
        if side == "right":
            return f"{text[:most]}...(truncated)"
        return f"{text[: most // 2]}...(truncated)...{text[-(most // 2) :]}"

    def format_observation(self, observation: Observation) -> Message | list[Message]:
        """One message for each answered call; media make it one."""
        if observation.get("multi_modal_data"):
            return super().format_observation(observation)
        return [{"role": "tool", "content": text} for text in observation["answers"]]

    async def close(self) -> None:
        """Have every tool forget the sample."""
        for name, instance in self._instances.items():
            await self.tools[name].release(instance)
