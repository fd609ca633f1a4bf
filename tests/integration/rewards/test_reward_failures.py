"""What a verifier that hangs or dies costs: one sample. And one verdict wherever a reward runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from relax_engine.rewards import RewardError, RewardExecutor, RewardSettings
from relax_engine.rewards import registry as rewards
from relax_engine.rewards.math import math_reward
from relax_engine.rewards.terms import read_terms
from relax_engine.types import Sample

ANSWERS = [("\\boxed{x+x}", "2x"), ("\\boxed{(2,1)}", "(1,2)"), ("\\boxed{9^{9^{9^9}}}", "1"), ("none", "1")]


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> str:
    """A built-in reward that hangs or dies on demand."""
    entry = rewards.RewardEntry("reward_hooks:hang_or_die", lowest=-1.0)
    monkeypatch.setattr(rewards, "BUILTIN", {**rewards.BUILTIN, "fragile": entry})
    return "fragile"


async def test_built_in_rewards_that_hang_or_die_give_their_lowest_score(fragile: str) -> None:
    samples = [Sample(index=index, label=label) for index, label in enumerate(["ok", "hang", "ok", "die", "ok"])]
    with RewardExecutor(RewardSettings(rm_type=fragile, timeout_s=0.5, num_workers=1), None) as executor:
        await executor.score(samples)
        assert [sample.reward for sample in samples] == [1.0, -1.0, 1.0, -1.0, 1.0]
        assert samples[1].metadata["reward_failure"] == "it missed its deadline of 0.5 s and was killed"
        assert samples[3].metadata["reward_failure"] == "its worker process died (exit code 3)"
        with pytest.raises(RewardError, match="KeyError"):
            await executor.score([Sample(label="raise")])


async def test_every_failure_of_a_custom_reward_can_have_a_score() -> None:
    samples = [Sample(index=index, label=label) for index, label in enumerate(["ok", "die", "raise"])]
    settings = RewardSettings(custom_rm_path="reward_hooks.hang_or_die", failure_score=0.25)
    with RewardExecutor(settings, None) as executor:
        await executor.score(samples)
    assert [sample.reward for sample in samples] == [1.0, 0.25, 0.25]
    assert samples[2].metadata["reward_failure"] == "KeyError: 'no such answer'"


async def test_terms_have_arguments_and_deadlines_of_their_own(fragile: str) -> None:
    terms = {
        "rm_type": 1.0,
        "bad": {"reward": fragile, "weight": 0.5, "how": "hang"},
        "loops": {"reward": "repetition"},
    }
    sample = Sample(response="a b \\boxed{\\frac12}", label="0.5")
    settings = RewardSettings(rm_type="boxed_multiple_choice", terms=read_terms(terms), timeout_s=1.0)
    with RewardExecutor(settings, None) as executor:
        await executor.score([sample])
    assert sample.reward == {"score": -0.5, "rm_type": 0.0, "bad": -1.0, "loops": 0.0}
    assert "deadline" in sample.metadata["reward_failure"]


async def test_boxed_rewards_see_the_box_alone() -> None:
    sample = Sample(response="the \\boxed{big apple} it is", label="Big Apple")
    for name, reward in (("boxed_f1", 1.0), ("f1", pytest.approx(1 / 3))):
        with RewardExecutor(RewardSettings(rm_type=name), None) as executor:
            await executor.score([sample])
        assert sample.reward == reward
        assert sample.response == "the \\boxed{big apple} it is"


def test_math_has_one_verdict_in_the_main_thread_in_another_and_in_a_process() -> None:
    samples = [Sample(response=response, label=label) for response, label in ANSWERS]
    here = [math_reward(None, sample) for sample in samples]
    there: list[float] = []
    thread = threading.Thread(target=lambda: there.extend(math_reward(None, sample) for sample in samples))
    thread.start()
    thread.join(60.0)
    with RewardExecutor(RewardSettings(rm_type="math"), None) as executor:
        asyncio.run(executor.score(samples))
    assert here == there == [sample.reward for sample in samples] == [1.0, 0.0, 0.0, 0.0]
