"""Which groups dynamic sampling keeps, and what a user's filter may return."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax_engine.rollout.filters import FilterOutput, apply_filter, check_no_failure, check_reward_nonzero_std
from relax_engine.types import Sample
from relax_engine.utils.hooks import load_function

ARGS = SimpleNamespace(reward_key=None)


def group(*rewards: Any) -> list[Sample]:
    return [Sample(group_index=3, index=index, reward=reward) for index, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((0.0, 1.0), FilterOutput(True)),
        ((1.0, 1.0, 1.0), FilterOutput(False, "zero_std_1.0")),
        ((-0.25, -0.25), FilterOutput(False, "zero_std_-0.2")),
        # 0.1 three times has a rounding error of a standard deviation, and still no spread.
        ((0.1, 0.1, 0.1), FilterOutput(False, "zero_std_0.1")),
        ((1.0, float("nan"), 1.0), FilterOutput(False, "zero_std_1.0")),
        ((1.0, float("nan"), 0.0), FilterOutput(True)),
        ((float("nan"), 1.0), FilterOutput(False, "no_comparison")),
        ((1.0,), FilterOutput(False, "no_comparison")),
    ],
)
def test_a_group_needs_spread(rewards: tuple[float, ...], expected: FilterOutput) -> None:
    assert check_reward_nonzero_std(ARGS, group(*rewards)) == expected


def test_the_reward_key_picks_what_is_compared() -> None:
    samples = group({"score": 1.0, "length": 1}, {"score": 1.0, "length": 9})
    assert not check_reward_nonzero_std(SimpleNamespace(reward_key="score"), samples).keep
    assert check_reward_nonzero_std(SimpleNamespace(reward_key="length"), samples).keep


def test_a_failed_reward_spoils_the_group_if_asked() -> None:
    assert check_no_failure(ARGS, group(1.0, 1.0)) == FilterOutput(True)
    assert check_no_failure(ARGS, group(1.0, float("inf"))) == FilterOutput(False, "reward_not_finite")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return samples[0].reward > 0", FilterOutput(False, "judge")),
        ("return len(samples) == 2", FilterOutput(True)),
        ("from types import SimpleNamespace as S; return S(keep=False, reason='dull')", FilterOutput(False, "dull")),
    ],
)
def test_a_users_filter(tmp_path: Path, body: str, expected: FilterOutput) -> None:
    file = tmp_path / "my_filter.py"
    file.write_text(f"def judge(args, samples):\n    {body}\n")
    assert apply_filter(load_function(f"{file}:judge"), ARGS, group(-1.0, 1.0)) == expected


def test_anything_else_is_an_error_with_the_filters_name() -> None:
    def undecided(args: Any, samples: Any) -> Any:
        return None

    with pytest.raises(TypeError, match="filter 'undecided' returned None for group 3; return True, False"):
        apply_filter(undecided, ARGS, group(1.0))
