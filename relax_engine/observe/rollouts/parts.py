"""A table that grows part by part: Parquet files of one directory, and the list of those that count.

What lives here: files. What does not: what is in the rows, beyond the column `step`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_MANIFEST = "parts.json"
_MERGED = 8
_LARGEST_ROWS = 131_072
_GROUP_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Part:
    """One file: how many rows it has, and the first and last step among them."""

    file: str
    rows: int
    first_step: int
    last_step: int


class PartTable:
    """One writer, any number of readers.

    The manifest names the parts that count, and is replaced as a whole, so a reader sees every row once. Eight
    neighbours of like size become one file, so a table of n rows is in O(log n) small files and n / 131,072 large ones,
    and each row is written again O(log n) times. A part that was merged stays until the next merge, for readers that
    have read the manifest before.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.parts = read_parts(directory)
        self._numbers = itertools.count(1 + max((int(part.file[5:13]) for part in self.parts), default=-1))
        self._superseded: list[str] = []
        named = {part.file for part in self.parts}
        for path in directory.glob("part-*.parquet*"):  # of a writer that was killed
            if path.name not in named:
                path.unlink()

    def append(self, table: pa.Table) -> None:
        """Add the rows of `table`; readers see them when this returns."""
        if table.num_rows:
            self.parts.append(self._write(iter(table.to_batches()), table.schema))
            self._merge()
            self._commit()

    def rewind(self, step: int) -> None:
        """Remove the rows of `step` and later ones: the run goes on from there."""
        import pyarrow.compute as pc

        kept: list[Part] = []
        for part in self.parts:
            if part.last_step < step:
                kept.append(part)
            elif part.first_step < step:
                with self._opened([part]) as (schema, batches):
                    before = (batch.filter(pc.less(batch.column("step"), step)) for batch in batches)
                    kept.append(self._write(before, schema))
        gone = {part.file for part in self.parts} - {part.file for part in kept}
        self.parts = kept
        self._commit()
        self._remove(sorted(gone))

    def _merge(self) -> None:
        """Make one part of the newest eight, while they are of like size and small enough together."""
        while len(self.parts) >= _MERGED:
            newest = self.parts[-_MERGED:]
            rows = [part.rows for part in newest]
            if sum(rows) > _LARGEST_ROWS or max(rows) > _MERGED * min(rows):
                return
            with self._opened(newest) as (schema, batches):
                merged = self._write(batches, schema)
            self.parts[-_MERGED:] = [merged]
            self._commit()
            self._remove(self._superseded)
            self._superseded = [part.file for part in newest]

    @contextlib.contextmanager
    def _opened(self, parts: Sequence[Part]) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """The columns of all parts together, and their rows; those of an earlier version lack some, null then."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(pq.ParquetFile(self.directory / part.file)) for part in parts]
            schema = pa.unify_schemas([file.schema_arrow for file in reversed(files)])
            yield schema, (_filled(batch, schema) for file in files for batch in file.iter_batches(_GROUP_ROWS))

    def _write(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Part:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        name = f"part-{next(self._numbers):08d}.parquet"
        path = self.directory / name
        rows, first, last = 0, None, None
        with pq.ParquetWriter(f"{path}.tmp", schema, compression="zstd") as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in itertools.chain(batches, [None]):
                if batch is not None and batch.num_rows:
                    waiting.append(batch)
                    bounds = pc.min_max(batch.column("step")).as_py()
                    first = bounds["min"] if first is None else min(first, bounds["min"])
                    last = bounds["max"] if last is None else max(last, bounds["max"])
                count = sum(batch.num_rows for batch in waiting)
                if waiting and (batch is None or count >= _GROUP_ROWS):
                    writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=_GROUP_ROWS)
                    rows, waiting = rows + count, []
        os.replace(f"{path}.tmp", path)
        assert first is not None
        assert last is not None
        return Part(name, rows, first, last)

    def _commit(self) -> None:
        path = self.directory / _MANIFEST
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps([asdict(part) for part in self.parts]))
        os.replace(temporary, path)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.directory / name).unlink(missing_ok=True)


def read_parts(directory: Path) -> list[Part]:
    """The parts that count now; none where nothing was written yet."""
    path = directory / _MANIFEST
    entries: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return [Part(**entry) for entry in entries]


def _filled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [given[one.name] if one.name in given else pa.nulls(batch.num_rows, one.type) for one in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
