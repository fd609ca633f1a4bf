"""Batches whose values say which row they are."""

import numpy as np

from relax_engine.stream.columns import Column, ColumnBatch


def rows_batch(first: int, rows: int, length: int = 8) -> ColumnBatch:
    """`rows` rows in groups of two; every token of row `r` is `r`, and row `r` has `r % (length + 1)` tokens."""
    numbers = np.arange(first, first + rows)
    return ColumnBatch(
        {
            "tokens": Column.ragged([np.full(r % (length + 1), r) for r in numbers], np.int32),
            "row": Column.fixed(numbers),
            "group_index": Column.fixed(numbers // 2),
        }
    )


def check_rows(batch: ColumnBatch, length: int = 8) -> list[int]:
    """The rows' numbers, after comparing every token with its row's number."""
    numbers = batch["row"].values.tolist()
    for index, number in enumerate(numbers):
        assert batch["tokens"].row(index).tolist() == [number] * (number % (length + 1))
    return numbers
