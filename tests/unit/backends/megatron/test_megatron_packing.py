"""Micro-batch plans and the index arithmetic of packed sequences."""

from __future__ import annotations

import numpy as np
import pytest

from relax_engine.backends.megatron.packing import MIN_FILL, Packing, pack, plan_micro_batches
from relax_engine.stream.columns import Column, ColumnBatch


def _plan(lengths: list[int], **options: object) -> list[list[int]]:
    defaults = {"max_tokens": None, "micro_batch_size": 1}
    return [part.tolist() for part in plan_micro_batches(np.array(lengths, np.int64), **defaults | options)]  # type: ignore[arg-type]


def test_token_budget_is_kept_and_a_longer_row_stands_alone() -> None:
    assert _plan([4, 4, 2, 30, 1, 9, 1], max_tokens=10) == [[0, 1, 2], [3], [4, 5], [6]]


def test_fixed_size() -> None:
    assert _plan([1] * 5, micro_batch_size=2) == [[0, 1], [2, 3], [4]]


def test_more_micro_batches_are_made_by_halving_the_heaviest() -> None:
    parts = _plan([10, 1, 1, 1, 1, 1, 1, 1, 1, 2], max_tokens=20, agree=lambda _: 3)
    assert [row for part in parts for row in part] == list(range(10))
    assert [len(part) for part in parts] == [1, 5, 4]  # 10 | 5 | 5 tokens


def test_ranks_that_run_out_of_rows_get_empty_micro_batches() -> None:
    assert _plan([3, 4], max_tokens=100, agree=lambda _: 4) == [[0], [1], [], []]
    assert _plan([], max_tokens=100, agree=lambda _: 2) == [[], []]


def test_rows_packed_beforehand_would_save_nothing() -> None:
    """No token is added, and the passes are within a tenth of the fewest that any packing of the rows could have."""
    lengths = np.random.default_rng(0).lognormal(5.5, 0.8, 4000).astype(np.int64).clip(16, 4096)
    plan = plan_micro_batches(lengths, max_tokens=8192, micro_batch_size=1)
    packed = [pack(_batch(lengths[rows].tolist(), [1] * len(rows))) for rows in plan]
    assert sum(len(each.tokens) for each in packed) == lengths.sum()
    assert len(plan) <= 1.1 * -(-lengths.sum() // 8192)


@pytest.mark.parametrize(
    ("option", "message"), [({"max_tokens": 0}, "max_tokens"), ({"micro_batch_size": 0}, "micro_")]
)
def test_impossible_sizes_are_refused(option: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _plan([1], **option)


def _batch(lengths: list[int], responses: list[int]) -> ColumnBatch:
    starts = np.cumsum([0, *lengths])
    rows = [np.arange(starts[i], starts[i + 1]) for i in range(len(lengths))]  # token id = packed position
    return ColumnBatch({"tokens": Column.ragged(rows, np.int32), "response_lengths": Column.fixed(responses, np.int32)})


def test_each_response_token_is_predicted_by_the_one_before() -> None:
    packing = pack(_batch([5, 3, 4], [2, 0, 3]))
    assert packing.targets.tolist() == [3, 4, 9, 10, 11]
    assert packing.predictors.tolist() == [2, 3, 8, 9, 10]
    assert packing.response_offsets.tolist() == [0, 2, 2, 5]
    assert packing.cu_lengths.tolist() == [0, 5, 8, 12]


def _cells(packing: Packing) -> list[list[list[int]]]:
    out, start = [], 0
    for bucket in packing.buckets:
        size = bucket.rows * bucket.length
        out.append(packing.to_padded[start : start + size].reshape(bucket.rows, bucket.length).tolist())
        start += size
    return out


def test_similar_lengths_share_a_rectangle_in_their_own_order() -> None:
    assert _cells(pack(_batch([3, 4], [1, 1]))) == [[[0, 1, 2, 2], [3, 4, 5, 6]]]


@pytest.mark.parametrize("lengths", [[40, 2, 3, 38, 3], [7], [1, 2, 4, 8, 16, 32], [5, 5, 5]])
def test_rectangles_hold_every_sequence_from_the_left(lengths: list[int]) -> None:
    packing = pack(_batch(lengths, [0] * len(lengths)))
    starts = np.cumsum([0, *lengths])
    sequences = sorted(list(range(starts[i], starts[i + 1])) for i in range(len(lengths)))
    found = []
    for rectangle in _cells(packing):
        for cells in rectangle:
            used = len(dict.fromkeys(cells))
            assert used >= MIN_FILL * len(cells)
            found.append(cells[:used])
    assert sorted(found) == sequences
    assert packing.to_padded[packing.to_packed].tolist() == list(range(sum(lengths)))


def test_total_is_rounded_up_with_a_sequence_of_its_own() -> None:
    packing = pack(_batch([5, 4], [1, 2]), multiple_of=4)
    assert len(packing.tokens) == 12
    assert packing.cu_lengths.tolist() == [0, 5, 9, 12]
    assert packing.response_offsets.tolist() == [0, 1, 3]


def test_no_rows_pack_one_placeholder_and_no_target() -> None:
    packing = pack(None, multiple_of=2)
    assert (len(packing.tokens), len(packing.targets), packing.response_offsets.tolist()) == (2, 0, [0, 0])


@pytest.mark.parametrize("response", [4, 5, -1])
def test_a_response_without_a_prompt_token_is_refused(response: int) -> None:
    with pytest.raises(ValueError, match=f"row 1 of the batch has 4 tokens and a response of {response}"):
        pack(_batch([5, 4], [1, response]))
