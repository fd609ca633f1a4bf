"""Streaming SHA-256 and the deterministic listing of what a path holds.

Nothing here knows about stores or manifests; no file is ever read whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from relax_engine.lineage.errors import InvalidNameError

CHUNK_BYTES = 1 << 20


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The stream's bytes in pieces of at most ``CHUNK_BYTES``."""
    while block := stream.read(CHUNK_BYTES):
        yield block


def sha256_stream(stream: BinaryIO) -> str:
    """SHA-256 (64 lower-case hex digits) of the rest of ``stream``."""
    digest = hashlib.sha256()
    for block in chunks(stream):
        digest.update(block)
    return digest.hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 (64 lower-case hex digits) of a file's content."""
    with path.open("rb") as stream:
        return sha256_stream(stream)


def list_files(root: Path) -> list[tuple[str, Path]]:
    """Every file under ``root`` as (relative POSIX path, path), sorted by the relative path.

    Symbolic links are followed, to files and to directories. A single file lists itself under its own
    name. Empty directories, modes and times are not listed: an artifact is its files' names and bytes.

    Raises:
        FileNotFoundError: ``root`` does not exist or a link inside it points nowhere.
        InvalidNameError: ``root`` holds no file, a cycle of links, or something that is not a regular file.
    """
    if root.is_file():
        return [(root.name, root)]
    if not root.is_dir():
        raise FileNotFoundError(f"cannot read {root}: no such file or directory")
    found: dict[str, Path] = {}
    _walk(root, "", (), found)
    if not found:
        raise InvalidNameError(f"cannot read {root}: the directory holds no file")
    return sorted(found.items())


def _walk(directory: Path, prefix: str, above: tuple[str, ...], found: dict[str, Path]) -> None:
    real = os.path.realpath(directory)
    if real in above:
        raise InvalidNameError(f"cannot read {directory}: its symbolic links form a cycle through {real}")
    for entry in os.scandir(directory):
        relative, path = prefix + entry.name, Path(entry.path)
        if entry.is_dir():
            _walk(path, relative + "/", (*above, real), found)
        elif entry.is_file():
            found[relative] = path
        elif entry.is_symlink() and not path.exists():
            raise FileNotFoundError(f"cannot read {path}: the link points to {os.readlink(path)}, which is missing")
        else:
            raise InvalidNameError(f"cannot read {path}: not a regular file, directory or link")
