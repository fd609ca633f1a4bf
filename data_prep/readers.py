"""Reading rows of Parquet and JSONL files as a stream of small batches.

What lives here: which rows a specification names, and getting them in order with memory bounded by one batch (and one
Parquet row group). What does not: what the columns mean (`formats`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import DataError

BATCH_ROWS = 1024
PARQUET, JSONL = ".parquet", ".jsonl"
SUFFIXES = {PARQUET: PARQUET, JSONL: JSONL, ".json": JSONL, ".ndjson": JSONL}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows of one file; `start` is the number of the first within that file, counted from 0."""

    path: Path
    start: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Source:
    """One file and the rows `[start, stop)` of it that are wanted; `stop=None` is its end."""

    path: Path
    start: int = 0
    stop: int | None = None

    def __str__(self) -> str:
        if not self.start and self.stop is None:
            return str(self.path)
        return f"{self.path}[{self.start}:{'' if self.stop is None else self.stop}]"


def parse_sources(spec: str | Path | Sequence[str]) -> list[Source]:
    """Files named by a path, a slice (`data.parquet[100:200]`), or a list of either.

    The notation is that of `--prompt-data`.

    Raises:
        DataError: nothing named, or a file that does not exist or has an unknown ending.
    """
    from relax_engine.rollout.prompts import PromptDataError, parse_prompt_data

    try:
        files = parse_prompt_data(str(spec) if isinstance(spec, Path) else spec)
    except PromptDataError as error:
        raise DataError(str(error)) from error
    if not files:
        raise DataError("no input file was named; give a Parquet or JSONL file")
    sources = [Source(Path(file.path), file.start, file.stop) for file in files]
    for source in sources:
        if not source.path.is_file():
            raise DataError(f"data file {str(source.path)!r} does not exist")
        file_kind(source.path)
    return sources


def file_kind(path: Path) -> str:
    """`.parquet` or `.jsonl`, by the file's ending.

    Raises:
        DataError: an unknown ending.
    """
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise DataError(
            f"data file {str(path)!r}: unknown format {path.suffix!r}; known: {', '.join(sorted(SUFFIXES))}"
        )
    return kind


def column_names(path: Path) -> list[str]:
    """Columns of a file: a Parquet file's schema, or the keys of the first JSONL row (empty without rows)."""
    if file_kind(path) == PARQUET:
        return list(_open_parquet(path).schema_arrow.names)
    first = next(_read_jsonl(path), None)
    return list(first) if first else []


def count_rows(source: Source) -> int | None:
    """Number of rows where the file says it without being read (Parquet), else None."""
    if file_kind(source.path) != PARQUET:
        return None
    total = int(_open_parquet(source.path).metadata.num_rows)
    return max(0, min(total, total if source.stop is None else source.stop) - source.start)


def read_batches(source: Source, *, batch_rows: int = BATCH_ROWS) -> Iterator[RowBatch]:
    """The wanted rows in order, at most `batch_rows` at a time.

    Raises:
        DataError: the file is damaged, with the place where that shows.
    """
    rows = _read_parquet(source, batch_rows) if file_kind(source.path) == PARQUET else _read_jsonl(source.path)
    pending: list[Row] = []
    first = source.start
    for number, row in enumerate(rows, start=source.start if file_kind(source.path) == PARQUET else 0):
        if number < source.start:
            continue
        if source.stop is not None and number >= source.stop:
            break
        pending.append(row)
        if len(pending) == batch_rows:
            yield RowBatch(source.path, first, pending)
            first, pending = number + 1, []
    if pending:
        yield RowBatch(source.path, first, pending)


def _open_parquet(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{str(path)!r} is not a readable Parquet file: {error}") from error


def _read_parquet(source: Source, batch_rows: int) -> Iterator[Row]:
    """Rows from `source.start` on; row groups that end before it are not read."""
    import pyarrow as pa

    file = _open_parquet(source.path)
    skipped = 0
    groups: list[int] = []
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if not groups and skipped + rows <= source.start:
            skipped += rows
        else:
            groups.append(group)
    ahead = source.start - skipped
    position = skipped
    try:
        for batch in file.iter_batches(batch_size=batch_rows, row_groups=groups):
            drop = min(ahead, batch.num_rows)
            ahead -= drop
            position += batch.num_rows
            yield from batch.slice(drop).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{str(source.path)!r} is damaged after row {position}: {error}") from error


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise DataError(f"{str(path)!r} line {number}: expected a JSON object, found {type(row).__name__}")
                yield row
        except json.JSONDecodeError as error:
            raise DataError(f"{str(path)!r} line {number}: not JSON: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{str(path)!r} is not UTF-8 text: {error}") from error
