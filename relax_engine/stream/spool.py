"""Blocks as files, so that they outlive both the process that wrote them and the one that held them.

A file is written before its block is acknowledged and removed with its partition. No fsync: what is
promised is to survive processes, not the machine.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

from relax_engine.stream.payload import Payload


class Spool:
    """A directory per partition and a file per stored object; every storage unit may read every file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, partition: str, key: str, payload: Payload) -> None:
        """Keep an object; it is there as a whole when this returns, and not at all before."""
        path = self._path(partition, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".partial")
        with temporary.open("wb") as file:
            pickle.dump(payload, file, protocol=pickle.HIGHEST_PROTOCOL)
        os.replace(temporary, path)

    def read(self, partition: str, key: str) -> Payload | None:
        """The object, None if it was never kept or its partition is gone."""
        try:
            with self._path(partition, key).open("rb") as file:
                payload: Payload = pickle.load(file)
        except FileNotFoundError:
            return None
        return payload

    def discard(self, partition: str, key: str) -> None:
        """Remove one object; unknown ones are fine."""
        self._path(partition, key).unlink(missing_ok=True)

    def drop(self, partition: str) -> None:
        """Remove a partition's objects; repeated and concurrent calls are fine."""
        shutil.rmtree(self.directory / partition, ignore_errors=True)

    def _path(self, partition: str, key: str) -> Path:
        return self.directory / partition / f"{key}.block"
