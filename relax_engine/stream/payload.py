"""From batch to block and back: what is stored, and how a delivery is put together from blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.delivery import Delivery, RowGroups

_ALIGNMENT = 64

Place = tuple[np.dtype, tuple[int, ...], int, int | None]
"""Where a column is: type and shape of its values, its first byte, and its rows if it is ragged.

The offsets of a ragged column come first; values begin at the next multiple of 64 bytes.
"""


@dataclass(frozen=True, slots=True)
class Payload:
    """One stored object: one or several batches in one buffer, `uint8[nbytes]`.

    One buffer, because everyone who handles an object pays for each array in it. Only columns of
    Python objects are not in the buffer.
    """

    buffer: np.ndarray
    batches: list[dict[str, Place | np.ndarray]]

    def column(self, part: int, name: str) -> Column:
        """A column of a batch, as a view."""
        place = self.batches[part][name]
        if isinstance(place, np.ndarray):
            return Column(place)
        dtype, shape, start, rows = place
        offsets = None
        if rows is not None:
            stop = start + 8 * (rows + 1)
            offsets, start = self.buffer[start:stop].view(np.int64), _aligned(stop)
        stop = start + dtype.itemsize * math.prod(shape)
        return Column(self.buffer[start:stop].view(dtype).reshape(shape), offsets)


class Packer:
    """Lays batches out in one buffer, copying each value once.

    The buffer is used again for the next object, since memory that is new to a process costs several
    times the copy into it. An object of more than `keep` bytes gets a buffer of its own.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._memory = np.empty(0, np.uint8)

    def pack(self, batches: Sequence[ColumnBatch]) -> Payload:
        """What goes into the object store; valid until the next call."""
        places: list[dict[str, Place | np.ndarray]] = []
        end = 0
        for batch in batches:
            places.append({})
            for name, column in batch.items():
                if column.dtype.hasobject:
                    places[-1][name] = column.values
                    continue
                rows = None if column.offsets is None else len(column)
                places[-1][name] = (column.dtype, column.shape, end, rows)
                end = _aligned(end if rows is None else end + 8 * (rows + 1))
                end = _aligned(end + column.dtype.itemsize * math.prod(column.shape))
        payload = Payload(self._room(end), places)
        for part, batch in enumerate(batches):
            for name, column in batch.items():
                if not column.dtype.hasobject:
                    into = payload.column(part, name)
                    column.write(into.values)
                    if into.offsets is not None:
                        into.offsets[:] = column.offsets
        return payload

    def _room(self, size: int) -> np.ndarray:
        if size > self._keep:
            return np.empty(size, np.uint8)
        if size > len(self._memory):
            self._memory = np.empty(min(self._keep, 2 * size), np.uint8)
        return self._memory[:size]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def assemble(delivery: Delivery, objects: Mapping[str, Payload], columns: Sequence[str] | None = None) -> ColumnBatch:
    """The delivery's rows, in row order.

    A column that lies in one block comes back as a view (read-only shared memory); one that is
    spread over several blocks is joined when it is read.
    """
    result: dict[str, Column] = {}
    for source in delivery.sources:
        for name in source.columns:
            if columns is None or name in columns:
                parts = []
                for piece in source.slices:
                    block = delivery.blocks[piece.block]
                    parts.append(objects[block.stored].column(block.part, name).slice(piece.start, piece.stop))
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
