"""Writing Parquet: row groups that depend on the rows alone, and files that appear only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.ahead import ahead
from data_prep.flat import value_bytes
from data_prep.limits import GROUP_BYTES, GROUP_ROWS
from data_prep.schema import DIGEST, PROMPT

REPEATED = [DIGEST, f"{PROMPT}.list.element.role"]
"""Columns of few values. A dictionary of the others would cost time and space: their texts differ."""


@contextmanager
def replacing(destination: Path) -> Iterator[Path]:
    """A path to write to, which becomes `destination` if nothing is raised and vanishes otherwise."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)


def write_parquet(tables: Iterable[pa.Table], schema: pa.Schema, path: Path, *, group_rows: int = GROUP_ROWS) -> int:
    """Write tables as one file, cut into row groups of `group_rows` rows (fewer where these hold `GROUP_BYTES`).

    The bytes depend on the rows and not on how they were handed in. Returns the number of rows.
    """
    rows = 0
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": REPEATED}
    with pq.ParquetWriter(path, schema, **options) as writer:
        for group in ahead(row_groups(tables, schema, group_rows)):
            writer.write_table(group, row_group_size=max(1, group.num_rows))
            rows += group.num_rows
    return rows


def row_groups(
    tables: Iterable[pa.Table], schema: pa.Schema, group_rows: int = GROUP_ROWS, group_bytes: int = GROUP_BYTES
) -> Iterator[pa.Table]:
    """The rows of `tables` in groups whose borders depend on the rows alone."""
    pending: list[pa.Table] = []
    rows, size = 0, 0
    for table in tables:
        sizes = np.cumsum(row_bytes(table))
        start = 0
        while start < table.num_rows:
            used = int(sizes[start - 1]) if start else 0
            room = start + group_rows - rows
            fits = int(np.searchsorted(sizes, used + group_bytes - size)) + 1
            stop = min(table.num_rows, room, max(fits, start + 1))
            pending.append(table.slice(start, stop - start))
            rows, size = rows + stop - start, size + int(sizes[stop - 1]) - used
            if rows >= group_rows or size >= group_bytes:
                yield pa.concat_tables(pending).cast(schema)
                pending, rows, size = [], 0, 0
            start = stop
    if pending:
        yield pa.concat_tables(pending).cast(schema)


def row_bytes(table: pa.Table) -> np.ndarray:
    """Bytes of text and media in each row, int64 `[rows]`."""
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        array = column.combine_chunks()
        array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
        total += value_bytes(array)
    return total
