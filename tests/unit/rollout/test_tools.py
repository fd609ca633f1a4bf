"""Tools as an environment: calls in a response, answers, limits, rewards, and the state of each sample."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relax_engine.rollout.action_tools import ActionEnvironment, ActionTool, observation
from relax_engine.rollout.environment import step_result
from relax_engine.rollout.pool import RolloutError
from relax_engine.rollout.tools import Tool, ToolEnvironment, ToolLimits, ToolResponse, ToolSchema
from relax_engine.types import Sample

SCHEMA = ToolSchema.model_validate({"function": {"name": "add", "parameters": {"type": "object"}}})


class Adder(Tool):
    """Adds to a number of each sample."""

    def __init__(self) -> None:
        super().__init__({}, SCHEMA)
        self.numbers: dict[str, int] = {}

    async def create(self, instance_id: str | None = None, start: int = 0, **kwargs: Any) -> tuple[str, ToolResponse]:
        name = str(instance_id)
        assert kwargs["create_kwargs"] == {"start": start}
        self.numbers[name] = start
        return name, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        self.numbers[instance_id] += parameters["n"]
        return ToolResponse(text=str(self.numbers[instance_id])), 0.25, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return float(self.numbers[instance_id])

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        del self.numbers[instance_id]


def environment(tool: Tool, start: int, **limits: Any) -> ToolEnvironment:
    kwargs = {"add": {"create_kwargs": {"start": start}}}
    sample = Sample(metadata={"extra_info": {"tools_kwargs": kwargs}})
    return ToolEnvironment([tool], ToolLimits(**{"max_turns": 5, **limits}), sample)


def calling(*calls: Any) -> str:
    return "I call.\n" + "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def add(n: Any) -> dict[str, Any]:
    return {"name": "add", "arguments": {"n": n}}


async def test_samples_share_a_tool_and_not_its_state() -> None:
    tool = Adder()
    one, two = environment(tool, 1), environment(tool, 100)
    await one.reset()
    await two.reset()
    assert (await one.step(calling(add(2))))[0]["obs_str"] == "3"
    assert (await two.step(calling(add(2))))[0]["obs_str"] == "102"
    _, done, info = await one.step("The answer is 3.")
    assert (done, info) == (True, {"tool_rewards": [0.25], "rollout_reward_scores": {"add": 3.0}})
    await one.close()
    assert len(tool.numbers) == 1


async def test_what_is_wrong_with_a_call_is_told_to_the_model() -> None:
    env = environment(Adder(), 0, max_parallel_calls=9)
    await env.reset()
    calls = [
        {"name": "sub", "arguments": {}},
        {"arguments": {}},
        "add",
        add("x"),
        {"name": "add", "arguments": '{"n":4}'},
    ]
    shown, done, _ = await env.step(calling(*calls))
    answers = [message["content"] for message in env.format_observation(shown)]
    assert answers == [
        "Error: there is no tool 'sub'; there are: add",
        "Error: a call is a JSON object with name and arguments (KeyError)",
        "Error: a call is a JSON object with name and arguments (TypeError)",
        "Error when executing tool: unsupported operand type(s) for +=: 'int' and 'str'",
        "4",
    ]
    assert not done


async def test_limits() -> None:
    env = environment(Adder(), 10**9, max_tool_response_length=4, max_turns=3)
    await env.reset()
    shown, _, _ = await env.step(calling(add(1), add(1)))
    assert [message["content"] for message in env.format_observation(shown)] == ["10...(truncated)...01"]
    await env.step(calling(add(1)))
    _, done, info = await env.step(calling(add(1)))
    assert (done, info["rollout_reward_scores"]) == (True, {"add": 10**9 + 2.0})


class Search(ActionTool):
    def __init__(self, _name: Any, _description: Any, **kwargs: Any) -> None:
        super().__init__(name=self.name)

    def reset(self, raw_prompt: Any, multi_modal_data: Any, origin_multi_modal_data: Any, topic: str = "") -> None:
        self.begun = (raw_prompt, topic)

    def execute(self, action_string: str, **kwargs: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        if "<answer>" in action_string:
            return "", 1.0, True, {"begun": self.begun}
        return [{"role": "tool", "content": [{"type": "text", "text": "found"}]}], -0.5, False, {}


async def test_a_tool_of_actions_is_an_environment() -> None:
    env = ActionEnvironment(Search, Sample(prompt="q", metadata={"topic": "t", "raw_prompt": "other"}), 4)
    await env.reset()
    first = step_result(await env.step("look"))
    assert (first.observation, first.done, first.reward) == (
        {"obs_str": "found", "role": "tool", "multi_modal_data": {}},
        False,
        -0.5,
    )
    last = step_result(await env.step("<answer>1</answer>"))
    assert (last.done, last.reward, last.info) == (True, 1.0, {"begun": ("q", "t")})
    assert observation({"chat": "c", "multi_modal_data": {"image": [1]}})["multi_modal_data"] == {"image": [1]}


@pytest.mark.parametrize("value", [None, "text", ("text", True), {"obs_str": ""}, (3, True, {})])
def test_other_forms_of_a_step_are_refused(value: Any) -> None:
    with pytest.raises(RolloutError, match=r"step returned .*; return \(observation, done, info\) or"):
        step_result(value)


def test_both_forms_of_a_step() -> None:
    assert step_result(({"obs_str": "a"}, True, None)).reward is None
    cut = step_result(("a", 1, False, True, {"k": 1}))
    assert (cut.observation, cut.done, cut.reward, cut.info) == ({"obs_str": "a"}, True, 1.0, {"k": 1})
