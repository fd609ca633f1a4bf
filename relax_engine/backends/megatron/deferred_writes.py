"""Files of a checkpoint that are written by a thread, from memory, while training goes on.

What lives here: a file system for torch's checkpoint writer that keeps what is written. Planning, serialisation and
metadata are torch's, and are done when `save` returns: nothing here talks to other ranks.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystem

_DATA = ".distcp"


class DeferredWrites:
    """Data files of one save on one rank. Life: files are added -> `start` -> `finish`."""

    def __init__(self) -> None:
        self.files = _MemoryFiles(self)
        self._waiting: list[tuple[Path, memoryview]] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="checkpoint-writer", daemon=True)

    def add(self, path: Path, content: memoryview) -> None:
        """Take a whole file."""
        self._waiting.append((path, content))

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def finish(self, timeout: float) -> None:
        """Wait until all files are written.

        Raises:
            TimeoutError: they are not after `timeout` seconds.
            OSError: one could not be written.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"{len(self._waiting)} checkpoint files were not written within {timeout:.0f} s")
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            while self._waiting:
                path, content = self._waiting[0]
                path.write_bytes(content)
                del self._waiting[0], content
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self._error = error


class _Buffer(io.BytesIO):
    """Keeps its content when torch closes it."""

    def close(self) -> None:
        self.flush()


class _MemoryFiles(FileSystem):
    """torch's local files, but data files stay in memory."""

    def __init__(self, writes: DeferredWrites) -> None:
        self._writes = writes

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if not str(path).endswith(_DATA):
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        buffer = _Buffer()
        yield buffer
        self._writes.add(Path(path), buffer.getbuffer())
