"""A taskset of the real package `verifiers` as an agent over real engines: `make test-verifiers`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_agents import left_processes, prompts, settings

from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.rollout.agents.process import AgentCommand
from relax_engine.rollout.agents.rollout import AgentRollout
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.pool import EnginePool
from relax_engine.rollout.sampling import SamplingSettings
from relax_engine.types import SampleStatus

pytestmark = pytest.mark.verifiers

HERE = Path(__file__).parent
PYTHON = HERE.parents[2] / ".venv-verifiers/bin/python"
COMMAND = f"{PYTHON} -m relax_engine.rollout.agents.verifiers_session letters_taskset"
SAMPLING = SamplingSettings(max_new_tokens=12, max_context_tokens=240, seed=5)


def test_prompts_are_those_of_the_tasks(tmp_path: Path) -> None:
    written = tmp_path / "prompts.jsonl"
    command = [*COMMAND.split(), "--prompts", str(written), "--limit", "2"]
    subprocess.run(command, check=True, timeout=120, env={"PYTHONPATH": str(HERE)})
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert [row["metadata"] for row in rows] == [{"task": 0}, {"task": 1}]
    assert rows[1]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "spell two"},
    ]


@pytest.mark.timeout(600)
async def test_an_episode_becomes_a_sample(engines: list[EngineProcess], tokenizer: Any) -> None:
    """What the package scored is the reward, and what it showed the model is in front of what is trained."""
    groups = prompts(tokenizer, 1)
    for sample in groups[0]:
        sample.metadata = {"task": 2}
    command = AgentCommand(COMMAND, variables={"PYTHONPATH": str(HERE)})
    async with (
        EnginePool([engine.url for engine in engines], timeout_s=60.0) as pool,
        AgentRollout(replace(settings(tokenizer, timeout_s=240.0, attempts=1), command=command)) as agents,
    ):
        await Generator(pool, SAMPLING, custom=agents).generate(groups)
        assert agents.counts == {"sessions": 2, "completed": 2}
    assert left_processes() == []
    for sample in groups[0]:
        assert sample.status in (SampleStatus.COMPLETED, SampleStatus.TRUNCATED)
        assert sample.reward == min(len(sample.metadata["answer"].strip()), 4) / 4
        assert sample.metadata["turns"] == 1.0
        shown = tokenizer.decode(sample.tokens[: sample.prompt_length])
        assert "Be brief.<|im_end|>" in shown
        assert shown.endswith("user\nspell three<|im_end|>\n<|im_start|>assistant\n")
        assert sum(sample.loss_mask) == sample.response_length > 0
