"""After validation: rows that break no rule to one file, the others to another, with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.files import digest
from data_prep.json_rows import BadRow
from data_prep.quarantine import quarantine_line
from data_prep.readers import RowBatch, read_batches
from data_prep.report import ValidationReport
from data_prep.sources import Source, Spec, parse_sources
from data_prep.writer import replacing, write_parquet


def set_aside(spec: Spec, report: ValidationReport, quarantine: str | Path) -> int:
    """Write the rows that `report` found bad to a JSONL file, with their reasons; returns how many."""
    count = 0
    with replacing(Path(quarantine)) as partial, partial.open("w", encoding="utf-8") as out:
        sources = parse_sources(spec)
        digests = {source.path: digest(source.path) for source in sources}
        for source, base, batch in _batches(sources):
            for number, row in batch.rows():
                reason = report.bad.get(base + number)
                if reason is not None:
                    content = row.excerpt if isinstance(row, BadRow) else row
                    out.write(quarantine_line(source.name, digests[source.path], number, reason, content) + "\n")
                    count += 1
    return count


def keep_good(spec: Spec, report: ValidationReport, destination: str | Path) -> int:
    """Write the rows that break no rule to a Parquet file with the columns of the first; returns how many."""
    tables = _good(parse_sources(spec), report)
    first = next(tables, None)
    with replacing(Path(destination)) as partial:
        if first is None:
            return write_parquet([], pa.schema([]), partial)
        return write_parquet(_chained(first, tables), first.schema, partial)


def _batches(sources: list[Source]) -> Iterator[tuple[Source, int, RowBatch]]:
    """Every batch with what must be added to its row numbers to have those of the report."""
    done = 0
    for source in sources:
        base = done - source.start if len(sources) > 1 else 0
        for batch in read_batches(source):
            yield source, base, batch
            done += len(batch)


def _good(sources: list[Source], report: ValidationReport) -> Iterator[pa.Table]:
    for _, base, batch in _batches(sources):
        if batch.table is not None:
            rows = range(base + batch.start, base + batch.start + len(batch))
            mask = np.array([number not in report.bad for number in rows])
            yield pa.Table.from_batches([batch.table]).filter(pa.array(mask))
        else:
            yield pa.Table.from_pylist([row for number, row in batch.parsed if base + number not in report.bad])


def _chained(first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    for table in others:
        yield table.cast(first.schema)
