"""Reading data files as a stream of batches, with memory bounded by one batch.

What lives here: getting the wanted rows in order, as Arrow columns where the file has types (Parquet) and as
dictionaries elsewhere (JSON). What does not: which files (`sources`), what the columns mean (`formats`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from data_prep.errors import DataError
from data_prep.files import is_remote, open_file
from data_prep.json_rows import BadRow, Row, read_json_rows
from data_prep.limits import BATCH_BYTES, BATCH_ROWS, EXPANSION, EXPANSION_FREE, MIB
from data_prep.sources import PARQUET, Source

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows of one file; `start` is the number of the first within that file, counted from 0.

    `table` holds them as columns if the file has types. `bad` are rows among them that could not be read.
    """

    source: Source
    start: int
    table: pa.RecordBatch | None = None
    parsed: list[tuple[int, Row]] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.parsed) + len(self.bad) if self.table is None else int(self.table.num_rows)

    def rows(self) -> Iterator[tuple[int, Row | BadRow]]:
        """Every row with its number, in order."""
        if self.table is None:
            pairs: list[tuple[int, Row | BadRow]] = [*self.parsed, *((row.number, row) for row in self.bad)]
            yield from sorted(pairs, key=lambda pair: pair[0])
            return
        rows: list[Any] | None = None
        with suppress(UnicodeDecodeError):  # some row holds text that is none: find out which
            rows = self.table.to_pylist()
        if rows is not None:
            for number, row in enumerate(rows, start=self.start):
                yield number, row
            return
        for number in range(self.start, self.start + len(self)):
            try:
                yield number, self.table.slice(number - self.start, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield number, BadRow(number, f"text that is not UTF-8: {error.reason} at byte {error.start}")


def column_names(source: Source) -> list[str]:
    """Columns of a file: a Parquet file's schema, or the keys of the first JSON row. Empty without rows.

    Raises:
        DataError: the file is damaged, or its first row is no object.
    """
    if source.kind == PARQUET:
        with _open_parquet(source) as file:
            return list(file.schema_arrow.names) if file.metadata.num_rows else []
    for _, row, _ in read_json_rows(Source(source.path, 0, 1)):
        if isinstance(row, BadRow):
            raise DataError(f"{source.path!r} {row.reason}")
        return list(row)
    return []


def count_rows(source: Source) -> int | None:
    """Number of rows where the file says it without being read (Parquet), else None."""
    if source.kind != PARQUET:
        return None
    with _open_parquet(source) as file:
        total = int(file.metadata.num_rows)
    return max(0, min(total, total if source.stop is None else source.stop) - source.start)


def parquet_metadata(source: Source) -> tuple[pa.Schema, dict[bytes, bytes]]:
    """The schema of a Parquet file and its key-value metadata."""
    with _open_parquet(source) as file:
        return file.schema_arrow, dict(file.schema_arrow.metadata or {})


def read_batches(source: Source, *, batch_rows: int = BATCH_ROWS) -> Iterator[RowBatch]:
    """The wanted rows in order, at most `batch_rows` at a time and about `BATCH_BYTES`.

    Raises:
        DataError: the file is damaged, with the place where that shows.
    """
    if source.kind == PARQUET:
        yield from _read_parquet(source, batch_rows)
        return
    parsed: list[tuple[int, Row]] = []
    bad: list[BadRow] = []
    held = 0
    for number, row, size in read_json_rows(source):
        if isinstance(row, BadRow):
            bad.append(row)
        else:
            parsed.append((number, row))
        held += size
        if len(parsed) + len(bad) == batch_rows or held >= BATCH_BYTES // 4:  # as objects they are several times larger
            yield RowBatch(source, number + 1 - len(parsed) - len(bad), None, parsed, bad)
            parsed, bad, held = [], [], 0
    if parsed or bad:
        yield RowBatch(source, number + 1 - len(parsed) - len(bad), None, parsed, bad)


def first_rows(source: Source, count: int) -> list[Row]:
    """The first readable rows, at most `count`."""
    batches = read_batches(source, batch_rows=count)
    rows = (row for batch in batches for _, row in batch.rows() if not isinstance(row, BadRow))
    return list(itertools.islice(rows, count))


@contextmanager
def _open_parquet(source: Source) -> Iterator[pq.ParquetFile]:
    """A Parquet file whose pages are read as they are needed and checked against their checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream: Any = open_file(source.path) if is_remote(source.path) else source.path
    try:
        with pq.ParquetFile(stream, page_checksum_verification=True, pre_buffer=False, buffer_size=MIB) as file:
            _refuse_bomb(source, file.metadata)
            yield file
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{source.path!r} is not a readable Parquet file: {error}") from error


def _refuse_bomb(source: Source, metadata: Any) -> None:
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            stored, full = max(1, column.total_compressed_size), column.total_uncompressed_size
            if full > max(EXPANSION_FREE, EXPANSION * stored):
                raise DataError(
                    f"{source.path!r}: column {column.path_in_schema!r} expands from {stored} to {full} bytes, "
                    f"more than {EXPANSION} times: it was made to exhaust memory"
                )


def _read_parquet(source: Source, batch_rows: int) -> Iterator[RowBatch]:
    """Rows from `source.start` on; row groups that end before it are not read."""
    import pyarrow as pa

    with _open_parquet(source) as file:
        position, largest = 0, 1.0
        groups: list[int] = []
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            if not groups and position + group.num_rows <= source.start:
                position += group.num_rows
                continue
            groups.append(number)
            largest = max(largest, group.total_byte_size / max(1, group.num_rows))
        size = max(1, min(batch_rows, int(BATCH_BYTES / largest)))
        stop = file.metadata.num_rows if source.stop is None else source.stop
        try:
            for batch in file.iter_batches(batch_size=size, row_groups=groups):
                wanted = batch.slice(max(0, source.start - position), max(0, stop - max(position, source.start)))
                if wanted.num_rows:
                    yield RowBatch(source, max(position, source.start), wanted)
                position += batch.num_rows
                if position >= stop:
                    return
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{source.path!r} is damaged after row {position}: {error}") from error
