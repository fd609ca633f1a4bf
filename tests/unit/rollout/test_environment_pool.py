"""Environments in processes of their own, and environments of other libraries."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax_engine.config.flat import FlatView
from relax_engine.rollout.adapters import gymnasium_env, reasoning_gym_env
from relax_engine.rollout.environment import step_result
from relax_engine.rollout.environment_pool import EnvironmentLostError, EnvironmentPool
from relax_engine.types import Sample

ENVIRONMENT = """
import os, time
from relax_engine.rollout.environment import BaseInteractionEnv

class Env(BaseInteractionEnv):
    def __init__(self, sample, args):
        self.sample, self.args = sample, args

    def reset(self):
        print("hello")
        return {"obs_str": ""}, {}

    async def step(self, text):
        if text == "hang":
            time.sleep(600)
        if text == "die":
            os._exit(3)
        if text == "raise":
            raise ValueError("no such move")
        return {"obs_str": f"{os.getpid()} {self.sample.index} {self.args.size}", "role": "tool"}, 0.5, False, False, {}

    def format_observation(self, observation):
        return [{"role": "tool", "content": "seen " + observation["obs_str"]}]

def build_env(sample=None, args=None, **_):
    return Env(sample, args)
"""


async def test_a_bad_environment_costs_its_process_alone(tmp_path: Path) -> None:
    path = tmp_path / "env.py"
    path.write_text(ENVIRONMENT)
    args = FlatView({"size": 4})
    async with EnvironmentPool(2, timeout_s=1.0) as pool:
        one = await pool.build(str(path), Sample(index=7), args)
        await one.reset()
        result = step_result(await one.step("go"))
        pid, index, size = result.observation["obs_str"].split()
        assert (index, size, result.reward) == ("7", "4", 0.5)
        assert int(pid) != os.getpid()
        assert one.format_observation(result.observation)[0]["content"].startswith("seen ")
        two = await pool.build(str(path), Sample(index=8), args)
        # A third waits for a place, and gets the process of the first.
        third = asyncio.create_task(pool.build(str(path), Sample(index=9), args))
        await asyncio.sleep(0.1)
        assert not third.done()
        await one.close()
        three = await third
        assert step_result(await three.step("go")).observation["obs_str"].split() == [pid, "9", "4"]
        assert pool.started == 2
        for environment, word, message in (
            (three, "hang", "step .* longer than 1 s"),
            (two, "die", "ended during step"),
        ):
            started = time.monotonic()
            with pytest.raises(EnvironmentLostError, match=message):
                await environment.step(word)
            await environment.close()
            assert time.monotonic() - started < 5
        assert not psutil.pid_exists(int(pid))
        four = await pool.build(str(path), Sample(), args)
        with pytest.raises(EnvironmentLostError, match="ValueError: no such move"):
            await four.step("raise")
        await four.close()
        assert pool.started == 3
    assert [p.pid for p in psutil.Process().children() if "environment_worker" in " ".join(p.cmdline())] == []


def test_gymnasium_in_one_line() -> None:
    build_env = gymnasium_env("FrozenLake-v1", action=int, is_slippery=False)
    env = build_env(sample=Sample(group_index=3))
    assert env.reset()[0] == {"obs_str": "0"}
    shown: list[Any] = [env.step(text) for text in ("left, please", "9", "<answer>1</answer>", "1", "2")]
    assert [step[0]["obs_str"] for step in shown[2:]] == ["4", "8", "9"]
    assert shown[0][0]["obs_str"].startswith("no action: invalid literal")
    assert shown[1][0]["obs_str"] == "no action: 9 is not in Discrete(4)"
    for text in ("1", "2"):
        observation, reward, terminated, *_ = env.step(text)
    # Down and right from 9: to 13 and 14; one more step right is the goal.
    assert (observation["obs_str"], reward, terminated) == ("14", 0.0, False)
    assert env.step("2")[1:4] == (1.0, True, False)
    env.close()


def test_reasoning_gym_in_one_line() -> None:
    build_env = reasoning_gym_env("spell_backward", tries=2, seed=5)
    env = build_env(sample=Sample(metadata={"source_index": 2}))
    question, _ = env.reset()
    word = question["obs_str"].rpartition(": ")[2]
    wrong = env.step("<answer>?</answer>")
    assert (wrong[1] < 1.0, wrong[2], wrong[3]) == (True, False, False)
    right = env.step(f"<think>hm</think> {word[::-1]}")
    assert right[1:4] == (1.0, True, True)
