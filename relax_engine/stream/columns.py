"""Packed columns: how batches of samples travel between processes.

A ragged column is one flat array of values plus row offsets (Arrow's large-list layout), a fixed
column is one array with a row per sample. Both are plain NumPy buffers, so a batch crosses Ray's
object store without being pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

ROUTED_EXPERTS = "rollout_routed_experts"
"""Name of the column of the experts that each token was sent to when it was sampled: `[tokens, layers * k]`."""
OWN_EXPERTS = "routed_experts"
"""Name of the column of the experts that the old policy sent each token to, in the same form."""


class Column:
    """One column of a batch.

    `values` has shape `[total, *tail]` with `offsets` of shape `[rows + 1]` (ragged), or
    `[rows, *tail]` with `offsets=None` (fixed). Values that were given in parts are joined when
    somebody first asks for them as one array; `write` never needs them joined. Until then the parts
    are the caller's arrays: who changes them changes the column.
    """

    __slots__ = ("_parts", "offsets")

    def __init__(self, values: np.ndarray, offsets: np.ndarray | None = None) -> None:
        self._parts = [values]
        self.offsets = offsets

    @classmethod
    def _joined(cls, parts: Sequence[np.ndarray], lengths: Sequence[int] | np.ndarray | None) -> Column:
        """At least one part of one type, in order; `lengths` of the rows if ragged."""
        column = cls(parts[0])
        column._parts = list(parts)
        if lengths is not None:
            column.offsets = np.zeros(len(lengths) + 1, np.int64)
            np.cumsum(lengths, out=column.offsets[1:])
        return column

    @classmethod
    def ragged(cls, rows: Sequence[np.ndarray | Sequence[float]], dtype: np.typing.DTypeLike) -> Column:
        """Pack `rows` of any lengths, zero included."""
        parts = [np.asarray(row, dtype) for row in rows] or [np.empty(0, dtype)]
        return cls._joined(parts, [len(row) for row in rows])

    @classmethod
    def fixed(cls, values: np.ndarray | Sequence[float], dtype: np.typing.DTypeLike | None = None) -> Column:
        """One value (or fixed-shape array) per row."""
        return cls(np.asarray(values, dtype))

    @classmethod
    def objects(cls, rows: Sequence[object]) -> Column:
        """One Python object per row, such as images of different shapes; arrays inside still travel without a copy."""
        values = np.empty(len(rows), object)
        for index, row in enumerate(rows):
            values[index] = row
        return cls(values)

    def __reduce__(self) -> tuple[type[Column], tuple[np.ndarray, np.ndarray | None]]:
        return Column, (self.values, self.offsets)

    @property
    def values(self) -> np.ndarray:
        """All values as one array."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self._parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `values`."""
        return (sum(map(len, self._parts)), *self._parts[0].shape[1:])

    def write(self, out: np.ndarray) -> None:
        """Copy the values into `out`, which has their type and shape."""
        np.concatenate(self._parts, out=out)

    def __len__(self) -> int:
        return self.shape[0] if self.offsets is None else len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Payload bytes, offsets included; objects without a size of their own count as one pointer."""
        size = sum(part.nbytes for part in self._parts) + (0 if self.offsets is None else self.offsets.nbytes)
        if self.dtype == object:
            size += sum(map(_object_bytes, self.values))
        return size

    @property
    def lengths(self) -> np.ndarray:
        """Values per row, shape `[rows]`.

        Raises:
            TypeError: the column is fixed.
        """
        if self.offsets is None:
            raise TypeError("a fixed column has no row lengths")
        return np.diff(self.offsets)

    def row(self, index: int) -> np.ndarray:
        """A view of one row."""
        if self.offsets is None:
            return self.values[index]
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def slice(self, start: int, stop: int) -> Column:
        """Rows `[start, stop)` as a view; all rows come back as the column itself."""
        if start == 0 and stop == len(self):
            return self
        if self.offsets is None:
            return Column(self.values[start:stop])
        offsets = self.offsets[start : stop + 1]
        return Column(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def select(self, rows: Sequence[int] | np.ndarray) -> Column:
        """The given rows in the given order; consecutive rows come back as views."""
        index = np.asarray(rows, np.int64)
        consecutive = len(index) > 0 and bool(np.all(np.diff(index) == 1))
        if self.offsets is None:
            return Column(self.values[index[0] : index[-1] + 1] if consecutive else self.values[index])
        if consecutive:
            offsets = self.offsets[index[0] : index[-1] + 2]
            return Column(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        parts = [self.row(i) for i in index.tolist()] or [self.values[:0]]
        return self._joined(parts, self.lengths[index])

    @classmethod
    def concat(cls, columns: Sequence[Column]) -> Column:
        """Rows of all columns in order; a single column comes back unchanged."""
        if len(columns) == 1:
            return columns[0]
        parts = [part for column in columns for part in column._parts]
        if columns[0].offsets is None:
            return cls._joined(parts, None)
        return cls._joined(parts, np.concatenate([column.lengths for column in columns]))


def _object_bytes(value: object) -> int:
    """Payload of a row that is an object: of an array, or of the arrays of a dictionary."""
    parts = value.values() if isinstance(value, Mapping) else [value]
    return sum(int(getattr(part, "nbytes", 0)) for part in parts)


@dataclass(frozen=True, slots=True)
class ColumnBatch(Mapping[str, Column]):
    """Named columns with the same number of rows."""

    columns: dict[str, Column]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of one batch must have the same number of rows, got {lengths}")

    def __getitem__(self, name: str) -> Column:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; the batch has {sorted(self.columns)}") from None

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def num_rows(self) -> int:
        """Rows in the batch; 0 when it has no columns."""
        return next((len(column) for column in self.columns.values()), 0)

    @property
    def nbytes(self) -> int:
        """Payload bytes of all columns."""
        return sum(column.nbytes for column in self.columns.values())

    def select(self, rows: Sequence[int] | np.ndarray) -> ColumnBatch:
        """The given rows, in the given order, of every column."""
        return ColumnBatch({name: column.select(rows) for name, column in self.columns.items()})

    def with_columns(self, **columns: Column) -> ColumnBatch:
        """This batch with columns added or replaced."""
        return ColumnBatch({**self.columns, **columns})

    def only(self, names: Sequence[str]) -> ColumnBatch:
        """The named columns."""
        return ColumnBatch({name: self[name] for name in names})

    @classmethod
    def concat(cls, batches: Sequence[ColumnBatch]) -> ColumnBatch:
        """Rows of all batches in order; a single batch comes back unchanged.

        Raises:
            ValueError: no batch, or batches with different columns.
        """
        if not batches:
            raise ValueError("cannot concatenate zero batches")
        if len(batches) == 1:
            return batches[0]
        names = list(batches[0])
        for batch in batches[1:]:
            if set(batch) != set(names):
                raise ValueError(f"batches differ in columns: {sorted(names)} and {sorted(batch)}")
        return cls({name: Column.concat([batch[name] for batch in batches]) for name in names})

    def to_arrow(self) -> pa.RecordBatch:
        """The same buffers as an Arrow record batch (1-D columns only)."""
        arrays = {}
        for name, column in self.columns.items():
            values = pa.array(column.values)
            arrays[name] = (
                values if column.offsets is None else pa.LargeListArray.from_arrays(pa.array(column.offsets), values)
            )
        return pa.RecordBatch.from_pydict(arrays)
