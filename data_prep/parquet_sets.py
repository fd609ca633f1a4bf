"""Converted datasets as streams of tables of one schema: what splitting and mixing start from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from data_prep.errors import DataError
from data_prep.readers import count_rows, read_batches
from data_prep.sources import PARQUET, Source, Spec, parse_sources


def parquet_sources(spec: Spec) -> list[Source]:
    """The Parquet files that `spec` names.

    Raises:
        DataError: there is none, or one of another kind.
    """
    sources = parse_sources(spec)
    for source in sources:
        if source.kind != PARQUET:
            raise DataError(f"{source} is no Parquet file; convert it first (`relax data convert`)")
    return sources


def tables(sources: Sequence[Source], schema: pa.Schema | None = None) -> Iterator[pa.Table]:
    """All rows in order, in tables of `schema` (by default the first file's).

    Raises:
        DataError: a file has another schema, or is damaged.
    """
    for source in sources:
        for batch in read_batches(source):
            table = pa.Table.from_batches([batch.table])
            schema = schema or table.schema
            if not table.schema.equals(schema):
                raise DataError(
                    f"{source} has the columns {_types(table.schema)}, but the first file has {_types(schema)}; "
                    "convert both with the same options"
                )
            yield table.replace_schema_metadata(schema.metadata)


def total_rows(sources: Sequence[Source]) -> int:
    """Rows of all files."""
    return sum(count_rows(source) or 0 for source in sources)


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
