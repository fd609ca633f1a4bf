"""Finding reward functions by path, their signatures, and the registry of names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relax_engine.rewards import RewardSettings, register_reward, reward_names
from relax_engine.rewards.functions import absolute_reference, call_reward, is_async, load_function
from relax_engine.rewards.registry import reward_entry


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


def test_paths_of_modules_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_function("os.path.join") is load_function("os.path:join")
    file = tmp_path / "reward_in_file.py"
    file.write_text("def score(args, sample):\n    return 0.25\n")
    assert load_function(f"{file}:score")(None, None) == 0.25
    monkeypatch.chdir(tmp_path)
    assert absolute_reference("reward_in_file.py:score") == f"{file}:score"
    assert absolute_reference("package.module:score") == "package.module:score"
    assert load_function("reward_in_file.score")(None, None) == 0.25


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("score", ValueError, "write package.module.function"),
        ("no_such_package.score", ImportError, "there is no module 'no_such_package'"),
        ("os.path.no_such_function", ValueError, "'no_such_function' does not exist in 'os.path'"),
        ("os.path.sep", ValueError, "'sep' is not callable"),
        ("/nowhere/reward.py:score", ImportError, "/nowhere/reward.py does not exist"),
    ],
)
def test_bad_paths_are_named(path: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_function(path)


def test_a_missing_import_inside_the_users_module_is_not_hidden(tmp_path: Path) -> None:
    file = tmp_path / "reward_with_bad_import.py"
    file.write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_function(f"{file}:score")


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
