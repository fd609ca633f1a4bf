"""Advantages and weights of a whole batch: exclusion, whitening, input kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from relax_engine.algorithms import AlgorithmSettings, BatchTotals, get, training_columns
from relax_engine.algorithms.batch import batch_totals, needs_whole_batch
from relax_engine.algorithms.reduction import UNKNOWN_TOTALS, loss_scale

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


@pytest.mark.parametrize(
    "settings",
    [
        AlgorithmSettings(),
        AlgorithmSettings(calculate_per_token_loss=True),
        AlgorithmSettings(loss_constant_length=4),
    ],
    ids=["sample_mean", "token_mean", "constant"],
)
def test_weights_of_parts_times_the_scale_are_those_of_the_whole(settings: AlgorithmSettings) -> None:
    """Lengths 2, 3, 1; one token masked, the second row's reward failed: 2 samples and 3 tokens count."""
    given = columns(raw_reward=np.array([1.0, math.nan, 0.5]))
    whole = training_columns(GRPO, settings, given, OFFSETS)["loss_weights"]
    parts, totals = [], BatchTotals(0, 0)
    for rows, tokens in ((slice(0, 1), slice(0, 2)), (slice(1, 3), slice(2, 6))):
        part = {name: value[tokens if name == "loss_masks" else rows] for name, value in given.items()}  # type: ignore[index]
        offsets = OFFSETS[rows.start : rows.stop + 1] - OFFSETS[rows.start]
        totals += batch_totals(part, offsets)
        parts.append(training_columns(GRPO, settings, part, offsets, totals=UNKNOWN_TOTALS)["loss_weights"])
    assert totals == BatchTotals(samples=2, tokens=3)
    scale = loss_scale(totals, settings.reduction)
    assert (torch.cat(parts) * scale).tolist() == pytest.approx(whole.tolist(), rel=1e-6)


def test_samples_of_several_rows_count_once() -> None:
    given = {"loss_masks": np.ones(6, np.uint8), "sample_indices": np.array([4, 4, 6])}
    assert batch_totals(given, OFFSETS) == BatchTotals(samples=2, tokens=6)


@pytest.mark.parametrize(
    ("name", "flags", "whole"),
    [
        ("grpo", {}, False),
        ("grpo", {"normalize_advantages": True}, True),
        ("grpo", {"tis_batch_normalize": True}, True),
        ("m2po", {}, False),
    ],
)
def test_what_needs_the_whole_batch(name: str, flags: dict[str, bool], whole: bool) -> None:
    assert needs_whole_batch(get(name), AlgorithmSettings(**flags)) is whole  # type: ignore[arg-type]


def test_lengths_that_do_not_match_are_named() -> None:
    with pytest.raises(ValueError, match=r"3 rows and 7 tokens.*6 mask entries"):
        training_columns(GRPO, AlgorithmSettings(), columns(), np.array([0, 2, 5, 7]))


def test_missing_columns_are_named() -> None:
    given = columns()
    del given["loss_masks"]
    with pytest.raises(KeyError, match=r"grpo needs the columns \['loss_masks'\]; there are \['rewards', 'sample_ind"):
        training_columns(GRPO, AlgorithmSettings(), given, OFFSETS)
