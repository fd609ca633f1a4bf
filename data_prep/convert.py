"""Conversion of a source layout to ours: a stream of batches in, one Parquet file out.

Promises: the same input gives the same bytes; memory does not grow with the input; the output appears under its name
only when it is complete; rows that cannot be converted are listed, all of them counted, and nothing is written.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import DataError, DataValidationError, Finding
from data_prep.formats import Format, get_format
from data_prep.readers import Source, column_names, count_rows, parse_sources, read_batches
from data_prep.schema import Record, arrow_schema, to_table

ROW_GROUP_ROWS = 8192
MAX_REPORTED_ROWS = 20

logger = logging.getLogger(__name__)

Provenance = tuple[Record, str, int]


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """The file written, its number of rows, and the SHA-256 of each source file."""

    path: Path
    rows: int
    source_digests: tuple[str, ...]


def convert(spec: str | Path | Sequence[str], destination: str | Path, *, format: str = "verl") -> ConversionResult:
    """Convert the files that `spec` names (`data_prep.readers.parse_sources`) to one Parquet file in our layout.

    Args:
        spec: a path, a slice of one, or a list of either.
        destination: the Parquet file to write; an existing one is replaced.
        format: name of the source layout.

    Raises:
        DataError: unknown format, unreadable file, missing column, no rows.
        DataValidationError: rows that do not follow the layout; lists them.
    """
    layout = get_format(format)
    sources = parse_sources(spec)
    for source in sources:
        _require_columns(source, layout)
    digests = tuple(file_digest(source.path) for source in sources)
    destination = Path(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        rows = _write(sources, digests, layout, partial)
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)
    logger.info("converted %d rows of %s to %s", rows, ", ".join(map(str, sources)), destination)
    return ConversionResult(destination, rows, digests)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _require_columns(source: Source, layout: Format) -> None:
    present = column_names(source.path)
    if not present:
        raise DataError(f"{source} holds no rows; give a file with at least one prompt")
    missing = [column for column in layout.columns if column not in present]
    if missing:
        raise DataError(
            f"{source} has no column {missing[0]!r}, which the {layout.name!r} layout needs; it has {present}"
        )


def _write(sources: Sequence[Source], digests: Sequence[str], layout: Format, path: Path) -> int:
    """Write row groups of exactly `ROW_GROUP_ROWS` rows, however the input was cut; returns the number of rows."""
    import pyarrow.parquet as pq

    rows = 0
    pending: list[Provenance] = []
    schema = arrow_schema(layout.name)
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for record in _records(sources, digests, layout):
            pending.append(record)
            if len(pending) == ROW_GROUP_ROWS:
                writer.write_table(to_table(pending, layout.name), row_group_size=ROW_GROUP_ROWS)
                rows, pending = rows + len(pending), []
        if pending:
            writer.write_table(to_table(pending, layout.name), row_group_size=ROW_GROUP_ROWS)
            rows += len(pending)
    if not rows:
        raise DataError(f"{', '.join(map(str, sources))} holds no rows; give a file with at least one prompt")
    return rows


def _records(sources: Sequence[Source], digests: Sequence[str], layout: Format) -> Iterator[Provenance]:
    """Converted rows; after the last one raises if any row was bad, so that the report covers the whole input."""
    from relax_engine.utils.progress import progress

    for source, digest in zip(sources, digests, strict=True):
        bad: list[tuple[int, str]] = []
        count = 0
        with progress(f"convert {source.path.name}", count_rows(source)) as bar:
            for batch in read_batches(source):
                for number, row in enumerate(batch.rows, start=batch.start):
                    try:
                        record = layout.convert(row)
                    except ValueError as error:
                        count += 1
                        if len(bad) < MAX_REPORTED_ROWS:
                            bad.append((number, str(error)))
                        continue
                    yield record, digest, number
                bar.advance(len(batch.rows))
        if count:
            reason = f"not a row of the {layout.name!r} layout"
            raise DataValidationError(str(source), [Finding("layout", reason, count, tuple(bad))])
