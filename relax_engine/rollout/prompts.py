"""Prompt files as a stream of Arrow tables: Parquet and JSON, lists, directories, globs and row slices of them.

What lives here: files to tables, with memory bounded by one of them. What does not: which files a value names
(`data_prep.sources`), rows by number (`prompt_rows`), order, epochs and tokens (`data_source`), conversion between
layouts (`data_prep`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json

from data_prep.errors import DataError
from data_prep.files import DECOMPRESSION_ERRORS, open_text
from data_prep.limits import CELL_BYTES, MIB
from data_prep.readers import count_rows, read_batches
from data_prep.sources import JSONL, PARQUET, Source, parse_sources
from relax_engine.errors import RelaxError

_BLOCK_BYTES = 16 * MIB


class PromptDataError(RelaxError):
    """A prompt file cannot be used as it is."""


def prompt_tables(spec: str | Sequence[str], *, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """All wanted rows in tables of about 32 MiB, files in the order given; each file may have types of its own.

    `columns` must be there from the beginning of every file.

    Raises:
        PromptDataError: missing or unreadable file, unknown format, missing column, no rows.
    """
    rows = 0
    for file in _files(spec):
        checked = False
        try:
            for table in _tables(file):
                if not checked:
                    _require(columns, table, file)
                checked = True
                table.validate(full=True)  # text that is not UTF-8
                rows += table.num_rows
                yield table
        except (pa.ArrowException, DataError, *DECOMPRESSION_ERRORS) as error:
            raise PromptDataError(f"prompt file {file.path!r} cannot be read: {error}") from error
    if not rows:
        raise PromptDataError(f"--prompt-data {spec!r} holds no rows; give a file with at least one prompt")


def count_prompts(spec: str | Sequence[str]) -> int:
    """How many rows `prompt_tables` would give; Parquet files say it without being read.

    Raises:
        PromptDataError: missing or unreadable file.
    """
    total = 0
    for file in _files(spec):
        try:
            known = count_rows(file)
            total += sum(table.num_rows for table in _tables(file)) if known is None else known
        except (pa.ArrowException, DataError, *DECOMPRESSION_ERRORS) as error:
            raise PromptDataError(f"prompt file {file.path!r} cannot be read: {error}") from error
    return total


def _require(columns: Sequence[str], table: pa.Table, file: Source) -> None:
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise PromptDataError(
            f"prompt file {file.path!r} has no column {missing[0]!r}; it has {table.column_names}. "
            "Name the right one with --input-key, --label-key or --metadata-key"
        )


def _files(spec: str | Sequence[str]) -> list[Source]:
    try:
        return parse_sources(spec)
    except DataError as error:
        raise PromptDataError(f"--prompt-data {spec!r}: {error}") from error


def _tables(file: Source) -> Iterator[pa.Table]:
    if file.kind == JSONL:
        yield from _json_lines(file)
        return
    for batch in read_batches(file):
        if file.kind == PARQUET:
            yield pa.Table.from_batches([batch.table])
        elif batch.bad:
            raise DataError(f"row {batch.bad[0].number}: {batch.bad[0].reason}")
        else:
            yield pa.Table.from_pylist([row for _, row in batch.rows()])


def _json_lines(file: Source) -> Iterator[pa.Table]:
    """Whole lines of about `_BLOCK_BYTES` at a time."""
    position = 0
    with open_text(file) as stream:
        while (file.stop is None or position < file.stop) and (block := stream.read(_BLOCK_BYTES)):
            block += stream.readline(CELL_BYTES)
            if not block.strip():
                continue
            options = pyarrow.json.ReadOptions(block_size=len(block) + 1)
            table = pyarrow.json.read_json(pa.BufferReader(block), options)
            start = max(0, file.start - position)
            stop = table.num_rows if file.stop is None else file.stop - position
            position += table.num_rows
            table = table.slice(start, max(0, stop - start))
            if table.num_rows:
                yield table


def messages_of(value: Any, where: str) -> str | list[dict[str, Any]]:
    """A prompt cell as text or chat messages.

    Raises:
        PromptDataError: neither, naming `where` (the row).
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(m, dict) and m.get("role") for m in value):
        return [{key: item for key, item in message.items() if item is not None} for message in value]
    raise PromptDataError(
        f"{where}: a prompt is a non-empty string or a list of {{role, content}} messages, got {value!r:.120}"
    )
