"""Files by path or URL: local ones directly, all others through fsspec (`s3://`, `hf://`, `https://` and so on).

What lives here: opening, listing, hashing and decompressing, with an end to what a compressed file may become. What
does not: formats (`readers`).
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import IO, Any, cast

from data_prep.errors import DataError
from data_prep.limits import EXPANSION, EXPANSION_FREE
from data_prep.sources import Source

DECOMPRESSION_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def exists(path: str) -> bool:
    """Whether there is a file of that name."""
    if not is_remote(path):
        return Path(path).is_file()
    filesystem, inner = _filesystem(path)
    with _reaching(path):
        return bool(filesystem.isfile(inner))


def is_directory(path: str) -> bool:
    """Whether there is a folder of that name."""
    if not is_remote(path):
        return Path(path).is_dir()
    filesystem, inner = _filesystem(path)
    with _reaching(path):
        return bool(filesystem.isdir(inner))


def matching(pattern: str) -> list[str]:
    """Files that match a pattern (`*`, `?`, `[ab]`, `**`), in order of their names."""
    if not is_remote(pattern):
        return sorted(path for path in glob(pattern, recursive=True) if Path(path).is_file())
    filesystem, inner = _filesystem(pattern)
    with _reaching(pattern):
        return sorted(filesystem.unstrip_protocol(path) for path in filesystem.glob(inner) if filesystem.isfile(path))


def size(path: str) -> int:
    """Bytes of a file, as it is stored."""
    if not is_remote(path):
        return Path(path).stat().st_size
    filesystem, inner = _filesystem(path)
    with _reaching(path):
        return int(filesystem.size(inner))


def open_file(path: str) -> IO[bytes]:
    """A file's bytes as they are stored.

    Raises:
        DataError: the place cannot be reached, or its protocol needs a package that is not there.
    """
    if not is_remote(path):
        return open(path, "rb")
    filesystem, inner = _filesystem(path)
    with _reaching(path):
        return cast("IO[bytes]", filesystem.open(inner, "rb"))


def digest(path: str) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open_file(path) as stream:
        if is_remote(path):
            state = hashlib.sha256()
            while block := stream.read(1 << 20):
                state.update(block)
            return state.hexdigest()
        return hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()


@contextmanager
def open_text(source: Source) -> Iterator[io.BufferedReader]:
    """The decompressed bytes of a JSON file. Reading more than the limits allow raises `DataError`."""
    with open_file(source.path) as stored:
        raw = cast("io.RawIOBase", _Bounded(_decompressed(stored, source.compression), size(source.path), source.path))
        yield io.BufferedReader(raw, 1 << 20)


def _decompressed(stored: IO[bytes], compression: str | None) -> IO[bytes]:
    if compression == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stored))
    if compression == ".bz2":
        return cast("IO[bytes]", bz2.BZ2File(stored))
    if compression == ".xz":
        return cast("IO[bytes]", lzma.LZMAFile(stored))
    if compression == ".zst":
        import pyarrow as pa

        return cast("IO[bytes]", pa.CompressedInputStream(pa.PythonFile(stored), "zstd"))
    return stored


class _Bounded(io.RawIOBase):
    """A stream that refuses to grow beyond what a file of its size can honestly hold."""

    def __init__(self, stream: IO[bytes], stored: int, path: str) -> None:
        self._stream, self._path = stream, path
        self._left = max(EXPANSION_FREE, EXPANSION * stored)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise DataError(
                f"{self._path!r} expands to more than {EXPANSION} times its size, which no text does: "
                "it was made to exhaust memory; decompress it yourself if you trust it"
            )
        buffer[: len(data)] = data
        return len(data)


def _filesystem(path: str) -> tuple[Any, str]:
    import fsspec

    try:
        return cast("tuple[Any, str]", fsspec.core.url_to_fs(path))
    except (ImportError, ValueError) as error:
        raise DataError(f"{path!r} cannot be opened: {error}") from error


@contextmanager
def _reaching(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise DataError(f"{path!r} cannot be reached: {type(error).__name__}: {error}") from error
