"""The paired bootstrap: what pairs say that means do not, and its agreement with the normal theory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tasks.significance import compare


def test_pairs_find_a_small_difference_that_prompts_hide() -> None:
    hard = np.linspace(0, 1, 200)
    result = compare(hard + 0.01 + 0.005 * np.sin(np.arange(200)), hard)
    assert result.low > 0.009
    assert result.high < 0.011
    assert np.std(hard) / math.sqrt(200) > 0.02  # the error of either mean


def test_the_bounds_are_those_of_the_normal_approximation() -> None:
    rng = np.random.default_rng(1)
    ours, theirs = (rng.random(2000) < share for share in (0.72, 0.70))
    result = compare(ours.astype(float), theirs.astype(float))
    differences = ours.astype(float) - theirs
    error = 1.96 * differences.std(ddof=1) / math.sqrt(2000)
    assert result.difference == pytest.approx(differences.mean())
    assert result.low == pytest.approx(differences.mean() - error, abs=2e-3)
    assert result.high == pytest.approx(differences.mean() + error, abs=2e-3)


def test_equal_models_are_not_better_and_the_same_scores_give_the_same_bounds() -> None:
    scores = [0.0, 1.0, 0.5]
    assert compare(scores, scores).low == compare(scores, scores).high == 0.0
    assert compare(scores, [1.0, 0.0, 0.25]) == compare(scores, [1.0, 0.0, 0.25])


def test_what_cannot_be_paired_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot pair 2 scores with 3"):
        compare([1.0, 0.0], [1.0, 0.0, 0.5])
    with pytest.raises(ValueError, match="cannot pair 0 scores with 0"):
        compare([], [])


def test_one_prompt_says_nothing_for_sure() -> None:
    result = compare([1.0], [0.25])
    assert (result.difference, result.low, result.high) == (0.75, -math.inf, math.inf)
