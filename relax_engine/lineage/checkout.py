"""Verified local copies of artifacts, one directory per digest."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from relax_engine.lineage.backend import Backend
from relax_engine.lineage.errors import CorruptArtifactError
from relax_engine.lineage.hashing import list_files, sha256_file
from relax_engine.lineage.manifest import Artifact, FileEntry

_SWAP_ATTEMPTS = 8


def blob_key(sha256: str) -> str:
    """Where a file's bytes are kept."""
    return f"blobs/{sha256[:2]}/{sha256}"


def checkout(backend: Backend, artifact: Artifact, cache: Path) -> Path:
    """The artifact's directory (or single file) under ``cache``, every file re-hashed on the way.

    An existing checkout that lost, gained or changed a file is rebuilt. The files are read-only and, where
    the backend can, share their storage with the blobs: copy what you mean to change.

    Raises:
        CorruptArtifactError: a stored blob is missing or altered; nothing is left in ``cache`` then.
    """
    place = cache / artifact.digest
    if not _is_intact(place, artifact):
        _build(backend, artifact, place)
    return place / artifact.files[0].path if artifact.layout == "file" else place


def _is_intact(place: Path, artifact: Artifact) -> bool:
    if not place.is_dir():
        return False
    expected = {entry.path: entry for entry in artifact.files}
    try:
        present = dict(list_files(place))
    except (OSError, ValueError):  # emptied, or links put into it: rebuild
        return False
    return present.keys() == expected.keys() and all(_matches(present[path], expected[path]) for path in expected)


def _matches(path: Path, entry: FileEntry) -> bool:
    return path.stat().st_size == entry.size and sha256_file(path) == entry.sha256


def _build(backend: Backend, artifact: Artifact, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    staged = place.with_name(f".{artifact.short_digest}.{uuid.uuid4().hex}")
    try:
        for entry in artifact.files:
            _place_file(backend, artifact, entry, staged / entry.path)
        _swap_in(staged, place, artifact)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _place_file(backend: Backend, artifact: Artifact, entry: FileEntry, destination: Path) -> None:
    key = blob_key(entry.sha256)
    try:
        backend.download(key, destination)
    except FileNotFoundError:
        problem = "is missing"
    else:
        if _matches(destination, entry):
            return
        problem = f"holds {destination.stat().st_size} bytes with sha256 {sha256_file(destination)}"
    raise CorruptArtifactError(
        f"{artifact.ref} is damaged: {entry.path} should have {entry.size} bytes and sha256 {entry.sha256}, "
        f"but {backend.url}/{key} {problem}; remove that object and publish the file again to repair it"
    )


def _swap_in(staged: Path, place: Path, artifact: Artifact) -> None:
    """Rename into place; where another process was first, keep its copy if intact, else set it aside."""
    for attempt in range(_SWAP_ATTEMPTS):
        try:
            os.rename(staged, place)
            return
        except OSError:
            if _is_intact(place, artifact):
                return
            if attempt + 1 == _SWAP_ATTEMPTS:
                raise
        broken = staged.with_name(f".{artifact.short_digest}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(place, broken)
        shutil.rmtree(broken, ignore_errors=True)
