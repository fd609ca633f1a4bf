"""The signatures of reward functions, and the registry of names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relax_engine.rewards import RewardSettings, register_reward, reward_names
from relax_engine.rewards.executor import RewardExecutor
from relax_engine.rewards.functions import call_reward, is_async, takes_groups
from relax_engine.rewards.registry import reward_entry
from relax_engine.types import Sample


def both(args: Any, sample: Any) -> Any:
    return args, sample


def both_and_keywords(args: Any, sample: Any, **kwargs: Any) -> Any:
    return args, sample


def alone(sample: Any) -> Any:
    return None, sample


def alone_with_keywords(sample: Any, strict: bool = False, **kwargs: Any) -> Any:
    return None, sample


def group_alone(samples: Any, **kwargs: Any) -> Any:
    return None, samples


class Judge:
    async def __call__(self, args: Any, sample: Any) -> Any:
        return args, sample


@pytest.mark.parametrize("function", [both, both_and_keywords])
def test_functions_of_args_and_sample(function: Any) -> None:
    assert call_reward(function, "args", "sample") == ("args", "sample")


@pytest.mark.parametrize("function", [alone, alone_with_keywords, group_alone])
def test_functions_of_the_sample_alone(function: Any) -> None:
    assert call_reward(function, "args", "sample") == (None, "sample")


def test_async_functions_and_objects_are_recognised() -> None:
    async def coroutine(args: Any, sample: Any) -> float:
        return 1.0

    assert is_async(coroutine)
    assert is_async(Judge())
    assert not is_async(both)


async def test_the_name_of_its_parameter_says_that_a_function_scores_groups(tmp_path: Path) -> None:
    home = tmp_path / "ranks.py"
    home.write_text("async def ranks(args, samples):\n    return [float(len(samples) + s.index) for s in samples]\n")
    assert [takes_groups(function) for function in (both, alone, group_alone)] == [False, False, True]
    samples = [Sample(index=index, group_index=index // 2) for index in range(4)]
    with RewardExecutor(RewardSettings(custom_rm_path=f"{home}:ranks"), None) as executor:
        await executor.score(samples)
    assert [sample.reward for sample in samples] == [2.0, 3.0, 4.0, 5.0]


def test_registry() -> None:
    assert {"math", "dapo", "random", "exact_match"} <= set(reward_names())
    register_reward("test_functions_both", both)
    assert reward_entry("test_functions_both").reference == f"{__name__}:both"
    assert "test_functions_both" in reward_names()
    with pytest.raises(ValueError, match="already registered"):
        register_reward("math", both)
    with pytest.raises(ValueError, match="cannot be imported by worker processes"):
        register_reward("test_functions_lambda", lambda args, sample: 1.0)
    with pytest.raises(ValueError, match=r"unknown reward 'maths'; did you mean 'math'\?"):
        reward_entry("maths")


def test_listing_rewards_imports_no_heavy_module() -> None:
    code = (
        "import sys; from relax_engine.rewards import reward_names; reward_names();"
        "sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'sympy', 'math_verify', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"num_workers must be positive, got 0"):
        RewardSettings(num_workers=0)
