"""Loss weights: closed forms, shared denominators, and indifference to how the batch is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from relax_engine.algorithms import BatchTotals, loss_weights

LENGTHS = (100, 5, 5, 5)


def offsets_of(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])


def test_sample_mean_gives_every_sample_the_same_total() -> None:
    weights = loss_weights(torch.ones(115), offsets_of(LENGTHS), how="sample_mean")
    assert weights[0] == pytest.approx(1 / 400)
    assert weights[-1] == pytest.approx(1 / 20)


def test_token_mean_gives_every_token_of_the_batch_the_same_weight() -> None:
    weights = loss_weights(torch.ones(115), offsets_of(LENGTHS), how="token_mean")
    assert torch.allclose(weights, torch.full((115,), 1 / 115))


def test_constant_length_ignores_the_response_length() -> None:
    weights = loss_weights(torch.ones(115), offsets_of(LENGTHS), how="constant", constant_length=200)
    assert torch.allclose(weights, torch.full((115,), 1 / 800))


def test_denominator_counts_the_mask_not_the_length() -> None:
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 0, 0, 1])
    weights = loss_weights(mask, offsets_of((9,)), how="sample_mean")
    assert torch.allclose(weights, mask / 5)


def test_rows_of_one_sample_share_the_denominator_and_count_once() -> None:
    indices = torch.tensor([8, 3, 8])
    weights = loss_weights(torch.ones(7), offsets_of((2, 1, 4)), how="sample_mean", sample_indices=indices)
    # two samples; sample 8 has 6 tokens over two rows
    assert weights.tolist() == pytest.approx([1 / 12, 1 / 12, 1 / 2, 1 / 12, 1 / 12, 1 / 12, 1 / 12])
    constant = loss_weights(
        torch.ones(7), offsets_of((2, 1, 4)), how="constant", constant_length=10, sample_indices=indices
    )
    assert constant.tolist() == pytest.approx([1 / 20] * 7)


def test_masked_and_empty_samples_count_but_excluded_ones_do_not() -> None:
    mask = torch.tensor([1, 1, 0, 0, 1, 1])
    offsets = offsets_of((2, 2, 0, 2))
    counted = loss_weights(mask, offsets, how="sample_mean")
    assert counted.tolist() == pytest.approx([1 / 8, 1 / 8, 0, 0, 1 / 8, 1 / 8])
    excluded = loss_weights(mask, offsets, how="sample_mean", excluded=torch.tensor([False, False, False, True]))
    assert excluded.tolist() == pytest.approx([1 / 6, 1 / 6, 0, 0, 0, 0])
    tokens = loss_weights(mask, offsets, how="token_mean", excluded=torch.tensor([False, False, False, True]))
    assert tokens.tolist() == pytest.approx([1 / 2, 1 / 2, 0, 0, 0, 0])


@pytest.mark.parametrize("how", ["sample_mean", "token_mean", "constant"])
def test_empty_batch_and_all_masked_batch(how: str) -> None:
    assert loss_weights(torch.ones(0), torch.tensor([0]), how=how, constant_length=4).shape == (0,)
    masked = loss_weights(torch.zeros(3), offsets_of((2, 1)), how=how, constant_length=4)
    assert masked.tolist() == [0, 0, 0]


@pytest.mark.parametrize("how", ["sample_mean", "token_mean", "constant"])
def test_parts_with_totals_give_the_weights_of_the_whole(how: str) -> None:
    mask = (torch.arange(115) % 3 != 0).float()
    offsets = offsets_of(LENGTHS)
    whole = loss_weights(mask, offsets, how=how, constant_length=50)
    totals = BatchTotals(samples=4, tokens=int(mask.sum()))
    bounds = offsets.tolist()
    parts = [
        loss_weights(mask[start:end], torch.tensor([0, end - start]), how=how, constant_length=50, totals=totals)
        for start, end in pairwise(bounds)
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_bad_requests_are_named() -> None:
    with pytest.raises(ValueError, match="unknown reduction 'mean'"):
        loss_weights(torch.ones(1), torch.tensor([0, 1]), how="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="--loss-constant-length None"):
        loss_weights(torch.ones(1), torch.tensor([0, 1]), how="constant")
