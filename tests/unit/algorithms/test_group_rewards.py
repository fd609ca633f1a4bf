"""Reward normalisation: groups by id, failures excluded, degenerate groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from relax_engine.algorithms import AlgorithmSettings, excluded_rows, get, normalize_rewards

GRPO = get("grpo")


def normalize(rewards: list[float], groups: list[int], **flags: bool) -> list[float]:
    result = normalize_rewards(GRPO, rewards, groups, AlgorithmSettings(**flags))
    assert result.dtype == np.float32
    return [float(value) for value in result]


def test_unbiased_std_and_epsilon() -> None:
    # group {1, 0}: mean 0.5, unbiased std sqrt(0.5); population std would give 1.0
    expected = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert normalize([1, 0], [3, 3]) == pytest.approx([expected, -expected], abs=1e-6)


def test_groups_are_found_by_id_not_by_position() -> None:
    interleaved = normalize([1, 10, 0, 30, 20], [7, 2, 7, 2, 2])
    sorted_by_group = normalize([1, 0, 10, 30, 20], [7, 7, 2, 2, 2])
    assert interleaved == pytest.approx([sorted_by_group[i] for i in (0, 2, 1, 3, 4)])
    assert interleaved[1] == pytest.approx(-1.0, abs=1e-5)  # (10 - 20) / 10


def test_unequal_groups_keep_their_own_means() -> None:
    centered = normalize([1, 3, 0, 0, 6], [0, 0, 1, 1, 1], disable_grpo_std_normalization=True)
    assert centered == pytest.approx([-1, 1, -2, -2, 4])


def test_nan_reward_leaves_the_statistics_and_the_result_is_finite() -> None:
    result = normalize([1, math.nan, 0, math.inf, 5, 5], [0, 0, 0, 1, 1, 1])
    assert result[:3] == pytest.approx([math.sqrt(0.5), 0.0, -math.sqrt(0.5)], abs=1e-5)
    assert result[3:] == [0.0, 0.0, 0.0]
    assert excluded_rows([1, math.nan, 0, -math.inf]).tolist() == [False, True, False, True]


@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1e6, 1e6, 1e6], [7.0], [math.nan, math.nan]])
def test_groups_without_comparison_give_zero(rewards: list[float]) -> None:
    assert normalize(rewards, [0] * len(rewards)) == pytest.approx([0.0] * len(rewards), abs=1e-9)


def test_disabled_normalization_passes_raw_rewards_and_still_zeroes_failures() -> None:
    assert normalize([2, math.nan, 3], [0, 0, 0], disable_rewards_normalization=True) == [2.0, 0.0, 3.0]


def test_group_ids_must_match() -> None:
    with pytest.raises(ValueError, match=r"one group id per reward.*\(3,\).*\(2,\)"):
        normalize([1, 2, 3], [0, 0])
