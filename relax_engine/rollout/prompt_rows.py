"""Prompt rows by number, of files that may be far larger than memory.

What lives here: where rows are kept while a run lasts. What does not: reading files (`prompts`), the order in which
rows are asked for (`data_source`).
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from data_prep.limits import MIB
from data_prep.writer import row_groups
from relax_engine.rollout.prompts import prompt_tables

_IN_MEMORY_BYTES = 64 * MIB
_BLOCK_ROWS, _BLOCK_BYTES = 256, MIB
_CACHED_BLOCKS = 4


class PromptRows:
    """The rows of prompt files as a sequence of dictionaries.

    They are copied once, compressed, in blocks of at most 256 rows and about a mebibyte, each of which can be read
    alone, so that a shuffled order costs no more than the block of each row. Up to 64 MiB of blocks stay in memory;
    beyond that they lie in a temporary file (in `TMPDIR`) that has no name and vanishes with the process. May be used
    from several threads.
    """

    def __init__(self, spec: str | Sequence[str], keys: Sequence[str]) -> None:
        """Read all rows of `spec` (`prompt_tables`, with its errors); `keys` are columns that every file must have."""
        self._blocks = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - lives as long as this
        self._lock = threading.Lock()
        self._rows, self._bytes = [0], [0]  # where each block begins: row number, byte
        state = hashlib.sha256()
        for table in _blocks(prompt_tables(spec, columns=keys)):
            for batch in table.select([key for key in keys if key in table.column_names]).to_batches():
                state.update(batch.serialize())
            self._rows.append(self._rows[-1] + table.num_rows)
            self._bytes.append(self._bytes[-1] + self._blocks.write(_packed(table)))
        self.digest = state.hexdigest()
        """Of the contents of `keys` in all rows."""
        self._block = lru_cache(_CACHED_BLOCKS)(self._read)

    def __len__(self) -> int:
        return self._rows[-1]

    def __getitem__(self, row: int) -> dict[str, Any]:
        number = bisect_right(self._rows, row) - 1
        record: dict[str, Any] = self._block(number).slice(row - self._rows[number], 1).to_pylist()[0]
        return record

    def _read(self, number: int) -> pa.Table:
        start, stop = self._bytes[number : number + 2]
        with self._lock:
            self._blocks.seek(start)
            packed = self._blocks.read(stop - start)
        with pa.ipc.open_stream(packed) as reader:
            return reader.read_all()


def _blocks(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows in blocks whose borders depend on the rows alone, within a stretch of tables of one schema."""
    table = next(tables, None)
    while table is not None:
        following: list[pa.Table] = []
        yield from (
            block.combine_chunks()
            for block in row_groups(_alike(table, tables, following), table.schema, _BLOCK_ROWS, _BLOCK_BYTES)
        )
        table = following[0] if following else None


def _alike(first: pa.Table, tables: Iterator[pa.Table], following: list[pa.Table]) -> Iterator[pa.Table]:
    """`first` and the tables after it that have its schema; the first that has not goes to `following`."""
    yield first
    for table in tables:
        if not table.schema.equals(first.schema):
            following.append(table)
            return
        yield table


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
