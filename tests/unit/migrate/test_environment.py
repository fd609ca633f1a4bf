"""Migrated tools run as environments: verl's from their YAML file, RedAccel's from their class."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from relax_engine.migrate.migrate import Choices, migrate
from relax_engine.types import Sample

TOOL = """from typing import Any

from verl.utils.rollout_trace import rollout_trace_op

from .base_tool import BaseTool
from .helpers.units import to_grams
from .schemas import OpenAIFunctionToolSchema, ToolResponse


class Scale(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.weighed = {}

    async def create(self, instance_id=None, ground_truth=None, **kwargs):
        self.weighed[instance_id] = [float(ground_truth), 0.0]
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
        # heavier than before?
        grams = to_grams(parameters["kg"]) + self.config["tare"]
        self.weighed[instance_id][1] = grams
        return ToolResponse(text=f"{grams} g"), 0.5, {}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        right, weighed = self.weighed[instance_id]
        return float(right == weighed)

    async def release(self, instance_id: str, **kwargs) -> None:
        del self.weighed[instance_id]
"""
SCHEMA = {
    "type": "function",
    "function": {
        "name": "weigh",
        "description": "Weigh.",
        "parameters": {"type": "object", "properties": {"kg": {"type": "number"}}, "required": ["kg"]},
    },
}
SCRIPT = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/d/train.parquet \\
    data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.model.path=/models/m \\
    custom_reward_function.path=reward.py custom_reward_function.name=compute_score \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1 \\
    actor_rollout_ref.rollout.multi_turn.enable=True {further}
"""
TURNS = "actor_rollout_ref.rollout.multi_turn."


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "theirs"
    package = folder / "verl" / "tools" / "helpers"
    package.mkdir(parents=True)
    (folder / "setup.py").write_text("")
    (folder / "reward.py").write_text("def compute_score(data_source, solution_str, ground_truth):\n    return 1.0\n")
    for part in (package.parent.parent, package.parent, package):
        (part / "__init__.py").write_text("")
    (package / "units.py").write_text("def to_grams(kg):\n    return 1000 * kg\n")
    (package.parent / "base_tool.py").write_text("raise SystemExit('not loaded')\n")
    (package.parent / "schemas.py").write_text("raise SystemExit('not loaded')\n")
    (package.parent / "scale.py").write_text(TOOL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def tools(source: Path, *entries: dict[str, Any]) -> None:
    (source / "tools.yaml").write_text(yaml.safe_dump({"tools": list(entries)}))


def script(source: Path, **settings: Any) -> Path:
    path = source / "run.sh"
    path.write_text(SCRIPT.format(further=" ".join(f"{TURNS}{key}={value}" for key, value in settings.items())))
    return path


async def test_a_tool_of_verl_answers_and_scores(source: Path, tmp_path: Path) -> None:
    tools(source, {"class_name": "verl.tools.scale.Scale", "config": {"tare": 5}, "tool_schema": SCHEMA})
    settings = {"tool_config_path": "tools.yaml", "max_assistant_turns": 3, "max_tool_response_length": 99}
    report = migrate("verl", script(source, **settings), tmp_path / "weigh")
    assert report.counts()["needs you"] == 0
    values = yaml.safe_load((tmp_path / "weigh" / "weigh.yaml").read_text())
    assert values["custom_generate_function_path"] == "relax_engine.rollout.multi_turn.generate"
    assert values["apply_chat_template_kwargs"] == {"tools": [SCHEMA]}
    assert values["custom"] == {
        "max_turns": 3,
        "max_tool_response_length": 99,
        "rollout_interaction_env_path": "weigh.env_weigh",
    }
    assert "# heavier than before?" in (tmp_path / "weigh" / "scale.py").read_text()
    build_env = importlib.import_module("weigh.env_weigh").build_env
    kwargs = {"weigh": {"create_kwargs": {"ground_truth": "1505"}}}
    env = build_env(Sample(metadata={"extra_info": {"tools_kwargs": kwargs}}), SimpleNamespace(**values["custom"]))
    await env.reset()
    call = json.dumps({"name": "weigh", "arguments": {"kg": 1.5}})
    shown, done, _ = await env.step(f"<tool_call>{call}</tool_call>")
    assert (shown["obs_str"], done) == ("1505.0 g", False)
    _, done, info = await env.step("It is 1505 g.")
    assert (done, info) == (True, {"tool_rewards": [0.5], "rollout_reward_scores": {"weigh": 1.0}})
    await env.close()


def test_what_turns_need_is_said(source: Path, tmp_path: Path) -> None:
    tools(
        source,
        {"class_name": "verl.tools.mcp_search_tool.MCPSearchTool", "config": {"type": "mcp"}},
        {"class_name": "verl.tools.gone.Gone", "config": {}},
    )
    report = migrate("verl", script(source, tool_config_path="tools.yaml", format="pythonic"), tmp_path / "one")
    needs = {entry.key: entry.reason for entry in report.entries if entry.status == "needs you"}
    assert needs.pop(f"{TURNS}format") == "calls of another form: parse them in step of the environment"
    reasons = [entry.reason for entry in report.entries if entry.key == "tool"]
    assert reasons[0].startswith("MCPSearchTool asks an MCP server")
    assert reasons[1].startswith("verl.tools.gone.Gone is not in the source")
    report = migrate("verl", script(source, interaction_config_path="i.yaml"), tmp_path / "two")
    needs = {entry.key: entry.reason for entry in report.entries if entry.status == "needs you"}
    assert needs[f"{TURNS}interaction_config_path"].startswith("an interaction answers the model's turns")
    assert needs["environment"].startswith("turns need an environment")
    report = migrate("verl", script(source, tool_config_path="gone.yaml"), tmp_path / "three")
    assert [entry.reason for entry in report.entries if entry.key == "environment"] == [
        "gone.yaml is not there; give --environment"
    ]


ACTIONS = """from redaccel.verl.agent.tool_envs import ToolBase


class Lookup(ToolBase):
    name = "lookup"

    def __init__(self, _name, _desc, _params, **kwargs):
        super().__init__(name=self.name)

    def reset(self, raw_prompt, multi_modal_data, origin_multi_modal_data, **kwargs):
        self.topic = kwargs["topic"]

    def execute(self, action_string, **kwargs):
        if "answer" in action_string:
            return "", 1.0, True, {}
        return [{"role": "user", "content": f"about {self.topic}"}], 0.0, False, {}
"""


async def test_a_tool_of_redaccel(source: Path, tmp_path: Path) -> None:
    (source / "lookup.py").write_text(ACTIONS)
    launch = source / "exp.sh"
    launch.write_text(
        "cmd=(data.train_files=/d/t.parquet data.train_batch_size=8 actor_rollout_ref.model.path=/m "
        'trainer.n_gpus_per_node=8)\nredaccel-cli train "${cmd[@]}"\n'
    )
    migrate("redaccel", launch, tmp_path / "look", Choices(environment="lookup.py:Lookup"))
    build_env = importlib.import_module("look.env_look").build_env
    env = build_env(Sample(prompt="q", metadata={"topic": "bees"}), SimpleNamespace(max_turns=2))
    await env.reset()
    shown, reward, done, cut, _ = await env.step("search")
    assert (shown["obs_str"], reward, done, cut) == ("about bees", 0.0, False, False)
    assert (await env.step("answer"))[1:4] == (1.0, True, True)
