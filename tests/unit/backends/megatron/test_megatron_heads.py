"""Row indices between tokens and rectangles with heads first."""

from __future__ import annotations

import numpy as np

from relax_engine.backends.megatron.heads import cell_of_token, token_of_cell
from relax_engine.backends.megatron.packing import pack
from relax_engine.backends.megatron.sharing import compact
from relax_engine.stream.columns import Column, ColumnBatch


def test_both_indices_follow_the_rectangles_with_heads_first() -> None:
    rows = [[5, 6, 7, 1], [5, 6, 7, 2, 3, 9, 9, 9], [8, 4]]
    responses = [1, 5, 1]
    batch = ColumnBatch(
        {
            "tokens": Column.ragged([np.array(row) for row in rows], np.int32),
            "response_lengths": Column.fixed(responses, np.int32),
        }
    )
    shared = compact(pack(batch))
    heads = 3
    by_token = shared.tokens[:, None] * 10 + np.arange(heads)  # a number for each token and head
    rectangles = [(bucket.rows, bucket.length) for bucket in shared.buckets]
    cells = by_token.ravel()[token_of_cell(rectangles, shared.to_padded, heads)]
    start, token_start = 0, 0
    for bucket in shared.buckets:
        size, tokens = bucket.rows * heads * bucket.length, bucket.rows * bucket.length
        rectangle = cells[start : start + size].reshape(bucket.rows, heads, bucket.length)
        plain = shared.tokens[shared.to_padded[token_start : token_start + tokens]].reshape(bucket.rows, bucket.length)
        for head in range(heads):
            assert (rectangle[:, head] == plain * 10 + head).all()
        start, token_start = start + size, token_start + tokens
    assert len(shared.buckets) > 1
    assert start == len(cells)
    assert (cells[cell_of_token(rectangles, shared.to_packed, heads)].reshape(-1, heads) == by_token).all()
