"""Reading prompt files: Parquet and JSONL, lists and directories of them, and row slices (`data.parquet[100:200]`).

What lives here: bytes on disk to an Arrow table. What does not: order, epochs and tokens
(`data_source`), conversion between layouts (`data_prep`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from relax_engine.errors import RelaxError

_SUFFIXES = (".parquet", ".jsonl", ".json")
_SLICE = re.compile(r"^(?P<path>.+)\[(?P<start>\d*):(?P<stop>\d*)\]$")


class PromptDataError(RelaxError):
    """A prompt file cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """One file and the rows of it that are wanted."""

    path: str
    start: int = 0
    stop: int | None = None


def parse_prompt_data(spec: str | Sequence[str]) -> list[PromptFile]:
    """Files named by a `--prompt-data` value: a file, a directory, a slice, or a list literal of these."""
    if isinstance(spec, str):
        text = spec.strip()
        if text.startswith("["):
            try:
                names = ast.literal_eval(text)
            except (ValueError, SyntaxError) as error:
                raise PromptDataError(f"--prompt-data {spec!r} is not a list of paths: {error}") from error
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise PromptDataError(f"--prompt-data {spec!r} is not a list of paths: every entry must be a string")
        else:
            names = [text]
    else:
        names = list(spec)
    files = []
    for name in names:
        match = _SLICE.match(name)
        if match is None and Path(name).is_dir():
            files += [PromptFile(str(path)) for path in sorted(Path(name).iterdir()) if path.suffix in _SUFFIXES]
        elif match is None:
            files.append(PromptFile(name))
        else:
            stop = match["stop"]
            files.append(PromptFile(match["path"], int(match["start"] or 0), int(stop) if stop else None))
    return files


def read_prompts(spec: str | Sequence[str], *, columns: Sequence[str] = ()) -> pa.Table:
    """All wanted rows, files in the order given.

    `columns` must be present in every file.

    Raises:
        PromptDataError: missing or unreadable file, unknown format, missing column, no rows.
    """
    files = parse_prompt_data(spec)
    if not files:
        raise PromptDataError(f"--prompt-data {spec!r} names no Parquet or JSONL file")
    tables = [_read_file(file, columns) for file in files]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PromptDataError(f"the files of --prompt-data {spec!r} cannot be combined: {error}") from error
    if table.num_rows == 0:
        raise PromptDataError(f"--prompt-data {spec!r} holds no rows; give a file with at least one prompt")
    return table


def _read_file(file: PromptFile, columns: Sequence[str]) -> pa.Table:
    path = Path(file.path)
    if not path.is_file():
        raise PromptDataError(f"prompt file {file.path!r} does not exist")
    try:
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
        elif path.suffix in _SUFFIXES:
            table = pyarrow.json.read_json(path)
        else:
            raise PromptDataError(f"prompt file {file.path!r}: unknown format {path.suffix!r}; use .parquet or .jsonl")
    except (pa.ArrowException, OSError) as error:  # Arrow reports damaged pages as OSError
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
