"""Where checkpoints are read from: a directory, or a prefix of object storage that fsspec knows (`s3://bucket/model`).

What lives here: sizes and byte ranges of files. What does not: what the bytes mean (`dcp_reader.py`, `hf_reader.py`)
and where checkpoints are written to (`output.py`). Credentials and endpoints of object storage come from where its own
tools read them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `~/.aws`).
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.utils.object_store import open_filesystem

_READAHEAD_BYTES = 64 << 10
Place = Path | str
"""A local directory, or a URL."""


class Files(Protocol):
    """The files under one place, by their path relative to it."""

    place: Place

    def sizes(self) -> dict[str, int]:
        """Bytes of every file, sorted by name; empty where there is no such place."""

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill `target` (bytes) from `offset` of a file.

        Raises:
            FileNotFoundError: no such file.
            DamagedCheckpointError: the file ends before.
        """


class Extent(NamedTuple):
    """Bytes of an open local file, for the kernel to copy."""

    descriptor: int
    offset: int
    nbytes: int


class LocalFiles:
    """The files of a directory. Each stays open once it was read."""

    def __init__(self, directory: Path) -> None:
        self.place: Place = directory
        self._directory = directory
        self._open: dict[str, io.FileIO] = {}

    def sizes(self) -> dict[str, int]:
        """Bytes of every file, sorted by name; empty where there is no such directory."""
        paths = sorted(path for path in self._directory.rglob("*") if path.is_file())
        return {path.relative_to(self._directory).as_posix(): path.stat().st_size for path in paths}

    def extent(self, name: str, offset: int, count: int) -> Extent:
        """Part of a file."""
        if name not in self._open:
            self._open[name] = (self._directory / name).open("rb", buffering=0)
        return Extent(self._open[name].fileno(), offset, count)

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset` of a file."""
        descriptor = self.extent(name, offset, len(target)).descriptor
        while len(target):
            count = os.preadv(descriptor, [target], offset)
            if not count:
                raise DamagedCheckpointError(f"{self.place}/{name} ends before byte {offset + len(target)}")
            target, offset = target[count:], offset + count


class RemoteFiles:
    """The objects under one URL, read range by range."""

    def __init__(self, url: str) -> None:
        self.place: Place = url.rstrip("/")
        self._fs, self._root = open_filesystem(self.place)

    def sizes(self) -> dict[str, int]:
        """Bytes of every object, sorted by name; empty where there is none."""
        try:
            found = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        root = len(self._root) + 1
        return {path[root:]: int(entry["size"]) for path, entry in sorted(found.items()) if path[root:]}

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset` of an object."""
        data = self._fs.cat_file(f"{self._root}/{name}", start=offset, end=offset + len(target)) if target else b""
        if len(data) != len(target):
            raise DamagedCheckpointError(f"{self.place}/{name} ends before byte {offset + len(target)}")
        target[:] = data


def is_url(place: Place) -> bool:
    """Whether a place is object storage rather than a local path."""
    return "://" in str(place)


def files_at(place: Place) -> Files:
    """The files under a directory or URL; nothing is read yet."""
    return RemoteFiles(str(place)) if is_url(place) else LocalFiles(Path(place))


def below(place: Place, name: str) -> Place:
    """The place of that name in a place."""
    return f"{str(place).rstrip('/')}/{name}" if is_url(place) else Path(place) / name


def read_bytes(files: Files, name: str, size: int, offset: int = 0) -> bytes:
    """`size` bytes of a file."""
    data = bytearray(size)
    files.read_into(name, offset, memoryview(data))
    return bytes(data)


def window(files: Files, name: str, offset: int, length: int) -> io.BufferedReader:
    """A part of a file as a seekable file of its own."""
    return io.BufferedReader(_Window(files, name, offset, length), _READAHEAD_BYTES)


class _Window(io.RawIOBase):
    def __init__(self, files: Files, name: str, offset: int, length: int) -> None:
        self._files, self._name = files, name
        self._offset, self._length = offset, length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._length - self._position))
        self._files.read_into(self._name, self._offset + self._position, view[:count])
        self._position += count
        return count
