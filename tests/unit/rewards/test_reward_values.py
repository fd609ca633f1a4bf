"""What counts as a reward, and how a value that does not is named."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from relax_engine.rewards import RewardError
from relax_engine.rewards.values import check_group_rewards, check_reward


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (True, 1.0), (np.float32(0.5), 0.5), (np.array([2.0]), 2.0), (torch.tensor(0.25), 0.25)],
)
def test_numbers_of_any_kind(value: Any, expected: float) -> None:
    reward = check_reward(value, None)
    assert reward == expected
    assert type(reward) is float


def test_dict_keeps_its_other_entries() -> None:
    assert check_reward({"score": 1, "pred": "x"}, "score") == {"score": 1.0, "pred": "x"}


@pytest.mark.parametrize(
    ("value", "key", "message"),
    [
        (None, None, "it returned NoneType 'None', not a number"),
        ("0.5", None, "it returned str '0.5', not a number"),
        ([1.0], None, r"it returned list '\[1.0\]', not a number"),
        (math.nan, None, "it returned nan, which is not finite"),
        (-math.inf, None, "it returned -inf, which is not finite"),
        ({"acc": 1, "score": 2}, None, r"keys \['acc', 'score'\]; name the score's with --reward-key"),
        ({"acc": 1}, "score", r"without --reward-key 'score'; keys are \['acc'\]"),
        ({"score": math.nan}, "score", "the value under 'score' is nan, which is not finite"),
        ({"score": None}, "score", "the value under 'score' is NoneType 'None', not a number"),
    ],
)
def test_what_is_no_reward_is_named(value: Any, key: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_reward(value, key)


def test_groups() -> None:
    assert check_group_rewards((0, 1), 2, None) == [0.0, 1.0]
    assert check_group_rewards(np.array([0.5, 1.5]), 2, None) == [0.5, 1.5]
    with pytest.raises(ValueError, match="3 samples, 2 rewards"):
        check_group_rewards([1, 2], 3, None)
    with pytest.raises(ValueError, match=r"must return a list of 2 rewards, it returned float '0\.5'"):
        check_group_rewards(0.5, 2, None)
    with pytest.raises(ValueError, match="entry 1 of the group: it returned inf"):
        check_group_rewards([1, math.inf], 2, None)


def test_error_names_everything_and_survives_pickling() -> None:
    error = RewardError(
        path="my.reward", sample_index=7, group_index=2, cause="ValueError: boom", elapsed_s=0.5, details="trace"
    )
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "reward 'my.reward' failed on sample 7 of group 2 after 0.50 s: ValueError: boom\ntrace"
    assert (copy.path, copy.sample_index, copy.group_index, copy.elapsed_s) == ("my.reward", 7, 2, 0.5)
