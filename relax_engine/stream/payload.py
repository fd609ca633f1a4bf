"""From batch to block and back: what is stored, and how a delivery is put together from blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.delivery import Delivery, RowGroups

Payload = dict[str, tuple[np.ndarray, np.ndarray | None]]


def pack(batches: Sequence[ColumnBatch]) -> list[Payload]:
    """What goes into the object store: per batch `{column: (values, offsets)}`, plain arrays only."""
    return [{name: (column.values, column.offsets) for name, column in batch.items()} for batch in batches]


def assemble(delivery: Delivery, blocks: Mapping[str, Payload], columns: Sequence[str] | None = None) -> ColumnBatch:
    """The delivery's rows, in row order.

    A column that lies in one block comes back as a view (read-only shared memory); one that is
    spread over several blocks is concatenated.
    """
    result: dict[str, Column] = {}
    for source in delivery.sources:
        for name in source.columns:
            if columns is None or name in columns:
                parts = [Column(*blocks[piece.block][name]).slice(piece.start, piece.stop) for piece in source.slices]
                result[name] = Column.concat(parts)
    missing = set(columns or ()) - set(result)
    if missing:
        raise KeyError(f"columns {sorted(missing)} were not requested by take; it asked for {sorted(result)}")
    return ColumnBatch(result)


def row_groups(batch: ColumnBatch) -> RowGroups | None:
    """Runs of equal `group_index`; None when the batch has no such column."""
    if "group_index" not in batch or batch.num_rows == 0:
        return None
    index = batch["group_index"].values
    starts = np.concatenate(([0], np.flatnonzero(np.diff(index)) + 1))
    sizes = np.diff(starts, append=len(index))
    indices = index[starts].tolist()
    if len(set(indices)) != len(indices):
        raise ValueError(f"rows of one group must be contiguous; group_index of the batch is {index.tolist()[:64]}")
    return RowGroups(tuple(indices), tuple(sizes.tolist()))


def version_range(batch: ColumnBatch) -> tuple[int, int] | None:
    """Oldest and newest weight version in the batch (`first_version`, `last_version`), None without them."""
    if "first_version" not in batch or batch.num_rows == 0:
        return None
    first = batch["first_version"].values
    last = batch["last_version"].values if "last_version" in batch else first
    return int(first.min()), int(last.max())
