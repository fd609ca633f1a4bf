"""Prompt files as one Arrow table: Parquet and JSONL, lists, directories, globs and row slices of them.

What lives here: files to a table. What does not: which files a value names (`data_prep.sources`), order, epochs and
tokens (`data_source`), conversion between layouts (`data_prep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from data_prep.errors import DataError
from data_prep.files import DECOMPRESSION_ERRORS, open_file, open_text
from data_prep.sources import PARQUET, Source, parse_sources
from relax_engine.errors import RelaxError


class PromptDataError(RelaxError):
    """A prompt file cannot be used as it is."""


def read_prompts(spec: str | Sequence[str], *, columns: Sequence[str] = ()) -> pa.Table:
    """All wanted rows, files in the order given.

    `columns` must be present in every file.

    Raises:
        PromptDataError: missing or unreadable file, unknown format, missing column, no rows.
    """
    try:
        files = parse_sources(spec)
    except DataError as error:
        raise PromptDataError(f"--prompt-data {spec!r}: {error}") from error
    tables = [_read_file(file, columns) for file in files]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PromptDataError(f"the files of --prompt-data {spec!r} cannot be combined: {error}") from error
    if table.num_rows == 0:
        raise PromptDataError(f"--prompt-data {spec!r} holds no rows; give a file with at least one prompt")
    return table


def _read_file(file: Source, columns: Sequence[str]) -> pa.Table:
    try:
        if file.kind == PARQUET:
            with open_file(file.path) as stream:
                table = pyarrow.parquet.read_table(stream)
        else:
            with open_text(file) as stream:
                table = pyarrow.json.read_json(stream)
    except (pa.ArrowException, DataError, *DECOMPRESSION_ERRORS) as error:  # Arrow reports damaged pages as OSError
        raise PromptDataError(f"prompt file {file.path!r} cannot be read: {error}") from error
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise PromptDataError(
            f"prompt file {file.path!r} has no column {missing[0]!r}; it has {table.column_names}. "
            "Name the right one with --input-key, --label-key or --metadata-key"
        )
    stop = table.num_rows if file.stop is None else min(file.stop, table.num_rows)
    return table.slice(file.start, max(0, stop - file.start))


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
