"""Advantages and weights of a whole batch: exclusion, whitening, input kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from relax_engine.algorithms import AlgorithmSettings, BatchTotals, get, training_columns

GRPO = get("grpo")
OFFSETS = np.array([0, 2, 5, 6])


def columns(**more: object) -> dict[str, object]:
    return {
        "rewards": np.array([1.0, -1.0, 0.5], np.float32),
        "loss_masks": np.array([1, 1, 1, 0, 1, 1], np.uint8),
        "sample_indices": np.array([4, 5, 6]),
        **more,
    }


def test_advantage_is_broadcast_and_masked() -> None:
    result = training_columns(GRPO, AlgorithmSettings(), columns(), OFFSETS)
    assert result["advantages"].tolist() == [1.0, 1.0, -1.0, 0.0, -1.0, 0.5]
    assert result["returns"].tolist() == result["advantages"].tolist()
    assert result["loss_weights"].tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 0, 1 / 6, 1 / 3])
    assert {value.dtype for value in result.values()} == {torch.float32}


def test_read_only_arrays_are_accepted() -> None:
    given = columns()
    for value in given.values():
        value.setflags(write=False)  # type: ignore[attr-defined]
    assert training_columns(GRPO, AlgorithmSettings(), given, OFFSETS)["advantages"].shape == (6,)


@pytest.mark.parametrize(
    "failed",
    [{"raw_reward": np.array([1.0, math.nan, 0.5])}, {"rewards": np.array([1.0, math.inf, 0.5], np.float32)}],
    ids=["raw", "processed"],
)
def test_rows_with_a_failed_reward_are_excluded_and_everything_is_finite(failed: dict[str, object]) -> None:
    result = training_columns(GRPO, AlgorithmSettings(), columns(**failed), OFFSETS)
    assert result["advantages"].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.5]
    assert result["loss_weights"].tolist() == pytest.approx([1 / 4, 1 / 4, 0, 0, 0, 1 / 2])


def test_normalize_advantages_whitens_over_unmasked_tokens() -> None:
    settings = AlgorithmSettings(normalize_advantages=True)
    advantages = training_columns(GRPO, settings, columns(), OFFSETS)["advantages"]
    kept = advantages[torch.tensor([0, 1, 2, 4, 5])]
    assert float(kept.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(kept.var()) == pytest.approx(1.0, abs=1e-5)
    assert advantages[3] == 0.0


def test_whitening_part_of_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="whole global batch"):
        training_columns(
            GRPO, AlgorithmSettings(normalize_advantages=True), columns(), OFFSETS, totals=BatchTotals(6, 12)
        )


def test_lengths_that_do_not_match_are_named() -> None:
    with pytest.raises(ValueError, match=r"3 rows and 7 tokens.*6 mask entries"):
        training_columns(GRPO, AlgorithmSettings(), columns(), np.array([0, 2, 5, 7]))


def test_missing_columns_are_named() -> None:
    given = columns()
    del given["loss_masks"]
    with pytest.raises(KeyError, match=r"grpo needs the columns \['loss_masks'\]; there are \['rewards', 'sample_ind"):
        training_columns(GRPO, AlgorithmSettings(), given, OFFSETS)
