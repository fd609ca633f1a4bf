"""Packed columns: how batches of samples travel between processes.

A ragged column is one flat array of values plus row offsets (Arrow's large-list layout), a fixed
column is one array with a row per sample. Both are plain NumPy buffers, so a batch crosses Ray's
object store with one copy in and none out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a batch.

    `values` has shape `[total, *tail]` with `offsets` of shape `[rows + 1]` (ragged), or
    `[rows, *tail]` with `offsets=None` (fixed).
    """

    values: np.ndarray
    offsets: np.ndarray | None = None

    @classmethod
    def ragged(cls, rows: Sequence[np.ndarray | Sequence[float]], dtype: np.typing.DTypeLike) -> Column:
        """Pack `rows` of any lengths, zero included."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        parts = [np.asarray(row, dtype) for row in rows]
        values = np.concatenate(parts) if parts else np.empty(0, dtype)
        return cls(values, offsets)

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

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Payload bytes, offsets included; objects without a size of their own count as one pointer."""
        size = self.values.nbytes + (0 if self.offsets is None else self.offsets.nbytes)
        if self.values.dtype == object:
            size += sum(getattr(value, "nbytes", 0) for value in self.values)
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
        lengths = self.offsets[index + 1] - self.offsets[index]
        offsets = np.zeros(len(index) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        parts = [self.row(int(i)) for i in index]
        return Column(np.concatenate(parts) if parts else self.values[:0], offsets)

    @classmethod
    def concat(cls, columns: Sequence[Column]) -> Column:
        """Rows of all columns in order; a single column comes back unchanged."""
        if len(columns) == 1:
            return columns[0]
        values = np.concatenate([column.values for column in columns])
        if columns[0].offsets is None:
            return cls(values)
        lengths = np.concatenate([column.lengths for column in columns])
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(values, offsets)


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
