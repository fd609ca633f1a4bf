"""Converted rows on disk between reading and writing, so that a conversion that was cut off goes on where it was.

A segment is an Arrow file of converted rows, a file of rows that were set aside, and a small state that is written
last: a segment without its state does not exist.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import pyarrow as pa

from data_prep.errors import DataError

_KEY = "key"


@dataclass(slots=True)
class SegmentState:
    """What a finished segment brought: rows, rows set aside, and where reading goes on (source number, row)."""

    rows: int = 0
    bad: int = 0
    source: int = 0
    next_row: int = 0
    examples: list[tuple[int, int, str]] = field(default_factory=list)
    """First rows set aside: number of the source, row, reason."""


class Spool:
    """Segments in a folder. Those of another `key` (other input, other settings) are thrown away.

    A folder belongs to one process at a time: while another one converts to the same file, this one works in a folder
    of its own, which nobody continues.
    """

    def __init__(self, folder: Path, key: str) -> None:
        lock = _locked(folder)
        if lock is None:
            folder = folder.with_name(f"{folder.name}.{os.getpid()}")
            lock = _locked(folder)
        if lock is None:
            raise DataError(f"{folder} is in use by this process; convert to another file")
        self.folder, self._lock = folder, lock
        lock.seek(0)
        if lock.read() != key:
            for path in folder.iterdir():
                if path.name != _KEY:
                    path.unlink()
            lock.truncate(0)
            lock.write(key)
            lock.flush()

    def states(self) -> list[SegmentState]:
        """The finished segments."""
        found: list[SegmentState] = []
        while (path := self._path(len(found), "json")).is_file():
            state = SegmentState(**json.loads(path.read_text()))
            state.examples = [(source, row, reason) for source, row, reason in state.examples]
            found.append(state)
        return found

    def segment(self, number: int, schema: pa.Schema) -> Segment:
        """A new segment, to be used as a context."""
        return Segment(self, number, schema)

    def tables(self, segments: int) -> Iterator[pa.Table]:
        """All converted rows."""
        for number in range(segments):
            with pa.OSFile(str(self._path(number, "arrow"))) as file, pa.ipc.open_stream(file) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])

    def copy_bad(self, segments: int, destination: Path) -> None:
        """Write all rows that were set aside to one file."""
        with destination.open("wb") as out:
            for number in range(segments):
                with self._path(number, "bad").open("rb") as stream:
                    shutil.copyfileobj(stream, out)

    def remove(self) -> None:
        """Throw everything away."""
        shutil.rmtree(self.folder)

    def release(self) -> None:
        """Let another process have the folder, as it is."""
        self._lock.close()

    def _path(self, number: int, suffix: str) -> Path:
        return self.folder / f"{number:06d}.{suffix}"


def _locked(folder: Path) -> IO[str] | None:
    """The folder's key file, open and locked; None if another holds it."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        marker = folder / _KEY
        with suppress(FileNotFoundError):  # its last owner may remove it at any moment
            lock = marker.open("a+", encoding="utf-8")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return None
            if marker.exists() and os.path.samestat(marker.stat(), os.fstat(lock.fileno())):
                return lock
            lock.close()


class Segment:
    """One segment while it is written; it counts once its context ends without an error."""

    def __init__(self, spool: Spool, number: int, schema: pa.Schema) -> None:
        self.state = SegmentState()
        self._spool, self._number, self._schema = spool, number, schema

    def __enter__(self) -> Segment:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._file = pa.OSFile(str(self._spool._path(self._number, "arrow")), "wb")
        self._rows = pa.ipc.new_stream(self._file, self._schema, options=options)
        self._bad: IO[str] = self._spool._path(self._number, "bad").open("w", encoding="utf-8")
        return self

    def add(self, table: pa.Table) -> None:
        """Append converted rows."""
        self._rows.write_table(table)
        self.state.rows += table.num_rows

    def set_aside(self, line: str) -> None:
        """Append one bad row, as a line of JSON."""
        self._bad.write(line + "\n")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._rows.close()
        self._file.close()
        self._bad.close()
        if kind is None:
            state = self._spool._path(self._number, "json")
            partial = state.with_suffix(".partial")
            partial.write_text(json.dumps(asdict(self.state)))
            partial.replace(state)
