"""Shared prompts computed once, and the gradient of rows that are read several times."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relax_engine.backends.megatron.packing import pack
from relax_engine.backends.megatron.rows import RowGather
from relax_engine.backends.megatron.sharing import Compact, compact
from relax_engine.stream.columns import Column, ColumnBatch

PROMPT, OTHER = [1, 2, 3], [1, 2]


def _batch(*rows: tuple[list[int], list[int]]) -> ColumnBatch:
    return ColumnBatch(
        {
            "tokens": Column.ragged([np.array(prompt + response) for prompt, response in rows], np.int32),
            "response_lengths": Column.fixed([len(response) for _, response in rows], np.int32),
        }
    )


def _rectangles(shared: Compact) -> list[list[int]]:
    """Token ids of every line of every rectangle."""
    ids, start = [], 0
    for bucket in shared.buckets:
        cells = shared.tokens[shared.to_padded[start : start + bucket.rows * bucket.length]]
        ids += cells.reshape(bucket.rows, bucket.length).tolist()
        start += bucket.rows * bucket.length
    return ids


def test_a_groups_prompt_is_computed_once_and_last_tokens_never() -> None:
    shared = compact(pack(_batch((PROMPT, [11, 12]), (PROMPT, [21, 22, 23]), (OTHER, [31]))))
    assert shared.tokens.tolist() == [1, 2, 3, 11, 21, 22, 1, 2]
    assert shared.positions.tolist() == [0, 1, 2, 3, 3, 4, 0, 1]
    assert shared.predictors.tolist() == [2, 3, 2, 4, 5, 7]
    assert shared.targets.tolist() == [11, 12, 21, 22, 23, 31]
    # In the place of a last token stands the one before it, which no token reads there.
    assert sorted(_rectangles(shared)) == [[1, 2, 2], [1, 2, 3, 11, 11, 11], [1, 2, 3, 21, 22, 22]]
    assert shared.to_padded[shared.to_packed].tolist() == list(range(8))


def test_prompts_of_empty_responses_are_shared_too_and_a_prefix_is_not_a_prompt() -> None:
    shared = compact(pack(_batch((PROMPT, []), (OTHER, [9, 9]), (PROMPT, [7]))))
    assert shared.tokens.tolist() == [1, 2, 3, 1, 2, 9]
    assert shared.predictors.tolist() == [4, 5, 2]


@pytest.mark.parametrize("multiple_of", [1, 2, 4, 7])
def test_total_stays_a_multiple(multiple_of: int) -> None:
    batch = _batch((PROMPT, [11, 12]), (PROMPT, [21, 22, 23]), (PROMPT, [31]))
    shared = compact(pack(batch, multiple_of=multiple_of), multiple_of=multiple_of)
    assert len(shared.tokens) % multiple_of == 0
    assert shared.to_padded[shared.to_packed].tolist() == list(range(len(shared.tokens)))
    assert shared.tokens[shared.predictors].tolist() == [3, 11, 3, 21, 22, 3]
    assert len(compact(pack(None, multiple_of=multiple_of), multiple_of=multiple_of).tokens) == multiple_of


def test_the_gradient_of_a_row_is_the_sum_over_its_copies() -> None:
    rows = torch.arange(8.0).reshape(4, 1, 2).requires_grad_()
    gathered = RowGather(np.array([2, 0, 2, 3, 2]), 4, torch.device("cpu"))(rows)
    assert gathered[:, 0, 0].tolist() == [4.0, 0.0, 4.0, 6.0, 4.0]
    gathered.backward(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])[:, None, None].expand(5, 1, 2))
    assert rows.grad is not None
    assert rows.grad[:, 0].tolist() == [[2.0, 2.0], [0.0, 0.0], [21.0, 21.0], [8.0, 8.0]]


def test_no_row_selected_gives_a_gradient_of_zeros() -> None:
    rows = torch.ones(3, 2, requires_grad=True)
    RowGather(np.empty(0, np.int64), 3, torch.device("cpu"))(rows).sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.0, 0.0]] * 3


def test_total_is_rounded_with_the_tokens_left_out_if_they_suffice() -> None:
    packing = pack(_batch((PROMPT, [11, 12]), (PROMPT, [21, 22, 23]), (PROMPT, [31])))
    assert [len(compact(packing, round_to=size).tokens) for size in (1, 8, 16)] == [6, 8, 6]
