"""Penalties by length: the papers' formulas at their corners."""

from __future__ import annotations

import numpy as np
import pytest

from relax_engine.algorithms.shaping import ShapingSettings, length_penalty, overlong_penalty, shape_rewards


def test_the_overlong_penalty_is_dapos() -> None:
    # L_max 20, L_cache 4: nothing up to 16, then a slope, -1 at 20 and behind.
    penalty = overlong_penalty([0, 16, 17, 18, 20, 25], max_length=20, buffer=4)
    assert penalty.tolist() == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert overlong_penalty([20], max_length=20, buffer=20, factor=0.5).tolist() == [-0.5]
    for buffer in (0, 21):
        with pytest.raises(ValueError, match=f"--overlong-buffer-len {buffer}: must be from 1 to .* 20"):
            overlong_penalty([1], max_length=20, buffer=buffer)


def test_the_length_penalty_prefers_short_right_answers_and_spares_short_wrong_ones() -> None:
    lengths, groups = [10, 20, 15, 10, 20, 7, 7], [4, 4, 4, 4, 4, 1, 1]
    rewards = [1, 1, 1, 0, -1, 1, 0]
    assert length_penalty(lengths, rewards, groups).tolist() == [0.5, -0.5, 0.0, 0.0, -0.5, 0.0, 0.0]
    order = np.array([5, 0, 3, 1, 6, 4, 2])
    shuffled = length_penalty(np.array(lengths)[order], np.array(rewards)[order], np.array(groups)[order])
    assert shuffled.tolist() == length_penalty(lengths, rewards, groups)[order].tolist()
    assert length_penalty([], [], []).tolist() == []


def test_penalties_add_up_and_failed_rewards_stay_failed() -> None:
    settings = ShapingSettings(
        rollout_max_response_len=20, overlong_buffer_len=10, overlong_penalty_factor=2.0, length_penalty_coef=0.1
    )
    shaped = shape_rewards([1.0, 1.0, float("nan")], [10, 20, 15], [0, 0, 0], settings)
    assert shaped[:2].tolist() == pytest.approx([1.0 + 0.05, 1.0 - 0.05 - 2.0])
    assert np.isnan(shaped[2])
    assert shape_rewards([1.0, 0.5], [10, 20], [0, 0], ShapingSettings()).tolist() == [1.0, 0.5]
