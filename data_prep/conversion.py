"""The inner part of conversion: batches of source rows to tables of ours, and to rows set aside with their reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.ahead import ahead
from data_prep.arrow_values import number_column
from data_prep.errors import DataError
from data_prep.files import digest, is_remote
from data_prep.formats import Format, get_format
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import BadRow, Row
from data_prep.json_text import dumps
from data_prep.media import MediaItem, MediaReader, read_all
from data_prep.oversized import parts
from data_prep.quarantine import quarantine_line
from data_prep.readers import RowBatch, column_names, count_rows, first_rows, read_batches
from data_prep.schema import Record, arrow_schema, to_columns, to_table
from data_prep.sources import Source
from data_prep.spool import Segment, SegmentState, Spool
from relax_engine.utils.progress import Progress, progress

SEGMENT_ROWS = 1 << 18
"""Rows after which what was done is kept for good."""

MAX_EXAMPLES = 20
_SAMPLE = 256  # first rows of a file that show which media it has


@dataclass(frozen=True)
class Conversion:
    """What is converted, from which layout, and which media columns the result has."""

    sources: tuple[Source, ...]
    digests: tuple[str, ...]
    layout: Format
    options: ColumnOptions
    media: tuple[str, ...]
    media_root: str | None
    fetch_media: bool

    @classmethod
    def prepare(
        cls,
        sources: Sequence[Source],
        format: str,
        options: ColumnOptions,
        media_root: str | None,
        fetch_media: bool,
    ) -> Conversion:
        """Look at the files' columns and first rows.

        Raises:
            DataError: no format fits, a column is missing, a file is unreadable or empty.
        """
        layouts = [_layout(source, format, options) for source in sources]
        names = dict.fromkeys(layout.name for layout in layouts)
        if len(names) > 1:
            raise DataError(f"the files have different layouts ({', '.join(names)}); convert them one by one")
        media: dict[str, None] = {}
        for source in sources:
            for row in first_rows(source, _SAMPLE):
                media |= dict.fromkeys(_media(layouts[0], row, options))
        digests = tuple(digest(source.path) for source in sources)
        return cls(tuple(sources), digests, layouts[0], options, tuple(sorted(media)), media_root, fetch_media)

    @cached_property
    def schema(self) -> pa.Schema:
        """Of the tables this makes."""
        return arrow_schema(self.layout.name, self.media)

    def run(self, spool: Spool) -> list[SegmentState]:
        """Convert everything that `spool` does not hold yet; returns the states of all segments.

        Raises:
            DataError: a file is damaged.
        """
        states = spool.states()
        position = (states[-1].source, states[-1].next_row) if states else (0, 0)
        batches = ahead(self._batches(position))
        batch = next(batches, None)
        while batch is not None:
            with spool.segment(len(states), self.schema) as segment:
                while batch is not None and segment.state.rows + segment.state.bad < SEGMENT_ROWS:
                    number, rows = batch
                    for part in parts(rows):
                        self._add(number, part, segment)
                    batch = next(batches, None)
            states.append(segment.state)
        return states

    def _batches(self, position: tuple[int, int]) -> Iterator[tuple[int, RowBatch]]:
        for number, source in enumerate(self.sources):
            if number < position[0]:
                continue
            wanted = source
            if number == position[0] and position[1] > source.start:
                if source.stop is not None and position[1] >= source.stop:
                    continue
                wanted = replace(source, start=position[1])
            with progress(f"convert {source.name}", count_rows(wanted)) as bar:
                yield from self._counted(number, wanted, bar)

    def _counted(self, number: int, source: Source, bar: Progress) -> Iterator[tuple[int, RowBatch]]:
        for batch in read_batches(source):
            yield number, batch
            bar.advance(len(batch))

    def _add(self, number: int, batch: RowBatch, segment: Segment) -> None:
        segment.state.source, segment.state.next_row = number, batch.start + len(batch)
        file_digest = self.digests[number]
        if batch.table is not None and self.layout.convert_columns is not None and not self.media:
            columns = self.layout.convert_columns(batch.table) if _is_utf8(batch.table) else None
            if columns is not None:
                numbers = number_column(np.arange(batch.start, batch.start + len(batch)))
                segment.add(to_table(columns, file_digest, numbers, self.schema))
                return
        records: list[Record] = []
        numbers, media, texts = [], [], []
        reader = self._reader(self.sources[number])
        for row_number, row in batch.rows():
            try:
                record, items = self._row(row, reader)
                text = dumps(record.metadata)
            except ValueError as error:
                segment.state.bad += 1
                if len(segment.state.examples) < MAX_EXAMPLES:
                    segment.state.examples.append((number, row_number, str(error)))
                content = row.excerpt if isinstance(row, BadRow) else row
                name = self.sources[number].name
                segment.set_aside(quarantine_line(name, file_digest, row_number, str(error), content))
                continue
            records.append(record)
            numbers.append(row_number)
            media.append(items)
            texts.append(text)
        if records:
            numbers = pa.array(numbers, pa.int64())
            segment.add(to_table(to_columns(records, texts), file_digest, numbers, self.schema, media))

    def _row(self, row: Row | BadRow, reader: MediaReader) -> tuple[Record, dict[str, list[MediaItem]]]:
        if isinstance(row, BadRow):
            raise ValueError(row.reason)
        record = self.layout.convert(row, self.options)
        unexpected = sorted(record.media.keys() - set(self.media))
        if unexpected:
            raise ValueError(f"it has {unexpected[0]}, which the first {_SAMPLE} rows of the data have not")
        if not self.media:
            return record, {}
        text = "".join(message["content"] for message in record.prompt)
        return record, read_all(reader, {name: record.media.get(name, []) for name in self.media}, text)

    def _reader(self, source: Source) -> MediaReader:
        folder = None if is_remote(source.path) else str(Path(source.path).absolute().parent)
        root = self.media_root or folder
        return MediaReader(Path(root) if root else None, self.fetch_media)


def _layout(source: Source, format: str, options: ColumnOptions) -> Format:
    present = column_names(source)
    if not present:
        raise DataError(f"{source} holds no rows; give a file with at least one prompt")
    layout = get_format(format, present, options)
    missing = layout.missing(present)
    if missing:
        raise DataError(f"{source} has no column {missing!r}, which the {layout.name!r} layout needs; it has {present}")
    return layout


def _media(layout: Format, row: Row, options: ColumnOptions) -> list[str]:
    try:
        return list(layout.convert(row, options).media)
    except ValueError:
        return []


def _is_utf8(batch: pa.RecordBatch) -> bool:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
