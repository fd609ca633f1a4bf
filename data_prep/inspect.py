"""What a data file is: size, columns, layout, and its first row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_prep.errors import DataError
from data_prep.files import size
from data_prep.formats import AUTO, get_format
from data_prep.formats.options import ColumnOptions
from data_prep.quarantine import bounded
from data_prep.readers import column_names, count_rows, first_rows, parquet_metadata
from data_prep.schema import FORMAT_KEY, VERSION_KEY
from data_prep.sources import PARQUET, Source


@dataclass(frozen=True, slots=True)
class Description:
    """What is known of a file without reading it all; `rows` is None where the file does not say."""

    path: str
    bytes: int
    rows: int | None
    columns: dict[str, str]
    layout: str
    first: dict[str, Any] | None


def describe(source: Source) -> Description:
    """Look at a file's schema and first row.

    Raises:
        DataError: the file is damaged.
    """
    rows = first_rows(source, 1)
    first = bounded(rows[0]) if rows else None
    if source.kind == PARQUET:
        schema, pairs = parquet_metadata(source)
        columns = {field.name: str(field.type) for field in schema}
        version = pairs.get(VERSION_KEY, b"").decode()
        ours = f"ours, version {version}, from {pairs.get(FORMAT_KEY, b'?').decode()}" if version else None
    else:
        columns = {name: type(rows[0].get(name)).__name__ for name in column_names(source)} if rows else {}
        ours = None
    return Description(source.path, size(source.path), count_rows(source), columns, ours or _layout(columns), first)


def _layout(columns: dict[str, str]) -> str:
    try:
        return get_format(AUTO, columns, ColumnOptions()).name
    except DataError:
        return "none that can be told from the columns"
