"""The artifact store's backend on a POSIX file system.

``put_if_absent`` writes a temporary file and hard-links it to its name, which fails when the name exists
(also over NFS). ``compare_and_swap`` holds an advisory lock, which the kernel drops when its holder dies,
around "read, compare, rename". Temporary files live in ``tmp/`` of the same file system, so what a killed
writer leaves is never under a key.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from relax_engine.lineage.backend import Stored, Unfinished
from relax_engine.lineage.errors import SourceChangedError, StoreTimeoutError, StoreUrlError
from relax_engine.lineage.hashing import chunks

_LOCK_DEADLINE_S = 60.0
_LOCK_POLL_S = 0.005
_READ_ONLY = 0o444


class LocalBackend:
    """Objects as files under one root directory."""

    def __init__(self, root: Path, *, create: bool) -> None:
        self.root = root.expanduser().resolve()
        self.url = self.root.as_uri()
        self.cache_directory: Path | None = self.root / "checkouts"
        self._temporary = self.root / "tmp"
        if not create and not (self.root / "store.json").is_file():
            raise StoreUrlError(
                f"no artifact store at {self.root}; name one with --store or RELAX_ARTIFACTS "
                "(publishing an artifact creates it)"
            )
        if create:
            self._temporary.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Stored | None:
        """The document, or None when the key does not exist."""
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        return Stored(data, hashlib.sha256(data).hexdigest())

    def exists(self, key: str) -> bool:
        """Whether the key exists."""
        return self._path(key).is_file()

    def modified(self, key: str) -> float | None:
        """When the object was written or renewed, seconds since the epoch; None when it does not exist."""
        try:
            return self._path(key).stat().st_mtime
        except FileNotFoundError:
            return None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the key; False (and no change) when it exists."""
        path = self._path(key)
        if path.exists():
            return False
        with self._staged(data) as staged:
            return _link(staged, path)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> bool:
        """Replace the document whose token is ``expected`` (None: create it); False when it is another by now."""
        path = self._path(key)
        with self._locked(key):
            current = self.get(key)
            if (current.token if current else None) != expected:
                return False
            with self._staged(data) as staged:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged, path)
            _sync_directory(path.parent)
            return True

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that begin with ``prefix``, sorted. The prefix holds at least one whole folder."""
        folder = self._path(prefix.rpartition("/")[0])
        for directory, folders, files in os.walk(folder):
            folders.sort()
            relative = Path(directory).relative_to(self.root).as_posix()
            folders[:] = [f for f in folders if _may_hold(f"{relative}/{f}/", prefix)]
            for file in sorted(files):
                if f"{relative}/{file}".startswith(prefix):
                    yield f"{relative}/{file}"

    def list_modified(self, prefix: str) -> Iterator[tuple[str, float]]:
        """The same keys, each with what ``modified`` says of it."""
        for key in self.list(prefix):
            modified = self.modified(key)
            if modified is not None:
                yield key, modified

    def open(self, key: str) -> BinaryIO:
        """The object's bytes as a stream. Raises FileNotFoundError."""
        return self._path(key).open("rb")

    def upload(self, source: Path, key: str, sha256: str) -> None:
        """Stream a file to an immutable key (no change when it exists)."""
        path = self._path(key)
        if path.exists():
            return
        staged = self._temporary / uuid.uuid4().hex
        try:
            digest = hashlib.sha256()
            with source.open("rb") as reader, staged.open("xb") as writer:
                for block in chunks(reader):
                    digest.update(block)
                    writer.write(block)
                _sync(writer)
            if digest.hexdigest() != sha256:
                raise SourceChangedError(f"{source} changed while it was being published; publish again when it rests")
            staged.chmod(_READ_ONLY)
            _link(staged, path)
        finally:
            staged.unlink(missing_ok=True)

    def download(self, key: str, destination: Path) -> None:
        """Hard-link the object to ``destination``. Raises FileNotFoundError."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        os.link(self._path(key), destination)

    def renew(self, key: str) -> None:
        """Make ``modified`` now. Raises FileNotFoundError."""
        os.utime(self._path(key))

    def remove(self, key: str) -> None:
        """Delete the key; nothing happens when it does not exist."""
        self._path(key).unlink(missing_ok=True)

    def unfinished(self) -> Iterator[Unfinished]:
        """Temporary files of writers that live or that were killed."""
        for path in self._temporary.iterdir():
            with contextlib.suppress(FileNotFoundError):
                discard = functools.partial(path.unlink, missing_ok=True)
                yield Unfinished(f"tmp/{path.name}", path.stat().st_mtime, discard)

    def _path(self, key: str) -> Path:
        return self.root / key

    @contextlib.contextmanager
    def _staged(self, data: bytes) -> Iterator[Path]:
        staged = self._temporary / uuid.uuid4().hex
        try:
            with staged.open("xb") as writer:
                writer.write(data)
                _sync(writer)
            yield staged
        finally:
            staged.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        path = self.root / "locks" / (key.replace("/", "%") + ".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + _LOCK_DEADLINE_S
        with path.open("a") as handle:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StoreTimeoutError(
                            f"could not lock {path} within {_LOCK_DEADLINE_S:.0f} s: another process holds it; "
                            "`fuser` on the file names it"
                        ) from None
                    time.sleep(_LOCK_POLL_S)
            yield


def _link(staged: Path, path: Path) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(staged, path)
    except FileExistsError:
        return False
    _sync_directory(path.parent)
    return True


def _may_hold(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)


def _sync(writer: BinaryIO) -> None:
    writer.flush()
    os.fsync(writer.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
