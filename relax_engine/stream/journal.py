"""The ledger on disk: a snapshot and the operations since, so that a restarted controller knows what it knew.

What lives here: the two files. What is worth recording is the controller's matter.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relax_engine.stream.ledger import StreamLedger

_LENGTH = struct.Struct("<I")
_COMPACT_BYTES = 1 << 20


class Journal:
    """Operations on a `StreamLedger`, each on disk before its caller is answered.

    The ledger is a function of its operations, so replaying them in order rebuilds it. Once the
    operations outgrow the snapshot, a new snapshot begins a new generation; the name of an
    operations file carries the generation that it continues, so a crash between the two files
    replays nothing twice. An operation that was cut off by a crash was never answered, and is left out.

    Survives the process, not the machine: nothing is synced to the disk.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._generation = 0
        self._limit = _COMPACT_BYTES

    def load(self, fresh: Callable[[], StreamLedger]) -> StreamLedger:
        """The ledger as of the last recorded operation, or a fresh one; opens the journal for `append`."""
        ledger: StreamLedger | None = None
        with contextlib.suppress(FileNotFoundError):
            self._generation, ledger = pickle.loads(self._snapshot.read_bytes())
        if ledger is None:
            ledger = fresh()
        path = self._operations
        data = path.read_bytes() if path.exists() else b""
        end = 0
        while end + _LENGTH.size <= len(data):
            (size,) = _LENGTH.unpack_from(data, end)
            start = end + _LENGTH.size
            if start + size > len(data):
                break
            operation, arguments, options = pickle.loads(data[start : start + size])
            getattr(ledger, operation)(*arguments, **options)
            end = start + size
        self._file = path.open("ab")
        self._file.truncate(end)
        return ledger

    def append(self, ledger: StreamLedger, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Record an operation that `ledger` has just carried out."""
        record = pickle.dumps((operation, arguments, options), protocol=pickle.HIGHEST_PROTOCOL)
        self._file.write(_LENGTH.pack(len(record)) + record)
        self._file.flush()
        if self._file.tell() > self._limit:
            self._compact(ledger)

    def _compact(self, ledger: StreamLedger) -> None:
        following = self._generation + 1
        snapshot = pickle.dumps((following, ledger), protocol=pickle.HIGHEST_PROTOCOL)
        temporary = self._snapshot.with_suffix(".partial")
        temporary.write_bytes(snapshot)
        os.replace(temporary, self._snapshot)
        self._file.close()
        self._operations.unlink()
        self._generation = following
        self._limit = max(_COMPACT_BYTES, 2 * len(snapshot))
        self._file = self._operations.open("ab")

    @property
    def _snapshot(self) -> Path:
        return self.directory / "ledger.snapshot"

    @property
    def _operations(self) -> Path:
        return self.directory / f"ledger.{self._generation}.operations"
