"""Rows of a Parquet file that hold more text than any text has, before they are copied any further."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from data_prep.flat import value_bytes
from data_prep.json_rows import BadRow
from data_prep.limits import CELL_BYTES, MIB
from data_prep.readers import RowBatch


def parts(batch: RowBatch) -> Iterator[RowBatch]:
    """The batch, cut where a column of a row holds more than `CELL_BYTES` of text; such rows are bad.

    Media, which are bytes, have limits of their own (`media`).
    """
    table = batch.table
    if table is None or table.nbytes <= CELL_BYTES:
        yield batch
        return
    reasons: dict[int, str] = {}
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if not _holds_bytes(column.type):
            sizes = value_bytes(column)
            for row in np.flatnonzero(sizes > CELL_BYTES).tolist():
                reasons[row] = f"column {name!r} has {sizes[row]} bytes, more than {CELL_BYTES // MIB} MiB"
    start = 0
    for row in [*sorted(reasons), table.num_rows]:
        if row > start:
            yield RowBatch(batch.source, batch.start + start, table.slice(start, row - start))
        if row in reasons:
            number = batch.start + row
            yield RowBatch(batch.source, number, bad=[BadRow(number, reasons[row])])
        start = row + 1


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return True
    return any(_holds_bytes(kind.field(number).type) for number in range(kind.num_fields))
