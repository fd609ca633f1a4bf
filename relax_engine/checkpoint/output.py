"""Directories that are written file by file and appear whole, locally or in object storage.

A local one is built beside its place and renamed. Object storage has no rename: files are uploaded one by one, and the
last one is the mark without which nobody takes the rest for finished (`config.json` of a model, `checkpoint.json` of a
checkpoint). A writer that is killed leaves a hidden `.partial` directory, or objects without the mark.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from relax_engine.checkpoint.durable import sync_path, sync_tree
from relax_engine.checkpoint.errors import OutputExistsError
from relax_engine.checkpoint.files import Place, files_at, is_url
from relax_engine.utils.object_store import open_filesystem


class Output(Protocol):
    """A directory being written."""

    def file(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """A local path to write one file of the directory to, within the block."""


@contextlib.contextmanager
def writing(place: Place, *, mark: str, force: bool = False) -> Iterator[Output]:
    """Write a directory; leaving the block without an exception publishes it.

    Args:
        mark: name of the file that makes it complete; the last one to be written.
        force: replace what is at `place`: a local directory once the new one is whole, objects from the start on.

    Raises:
        OutputExistsError: there is something at `place`, and `force` is False.
    """
    if is_url(place):
        yield _Remote(str(place).rstrip("/"), mark, force)
        return
    out = Path(place).absolute()
    refuse_existing(place, force=force)
    staged = out.with_name(f".{out.name}.{uuid.uuid4().hex}.partial")
    staged.mkdir(parents=True)
    try:
        yield LocalOutput(staged)
        _put_in_place(staged, out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def refuse_existing(place: Place, *, force: bool = False) -> None:
    """Do nothing, unless something is at `place` and may not be replaced.

    Raises:
        OutputExistsError: names the place.
    """
    if force:
        return
    if is_url(place):
        occupied = bool(files_at(place).sizes())
    else:
        path = Path(place)
        occupied = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if occupied:
        raise OutputExistsError(f"{place} exists and is not empty; choose another output or allow replacing it (-f)")


class LocalOutput:
    """A directory whose writer publishes it himself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """Where the file will be."""
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path


class _Remote:
    """Uploads each file when it is written; at most one lies on the local disk."""

    def __init__(self, url: str, mark: str, force: bool) -> None:
        refuse_existing(url, force=force)
        self._fs, self._root = open_filesystem(url)
        self._mark = mark
        old = files_at(url).sizes()
        for name in sorted(old, key=lambda name: name != mark):  # first what makes the old one complete
            self._fs.rm_file(f"{self._root}/{name}")

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """A local file that is uploaded at the end of the block."""
        with tempfile.TemporaryDirectory(prefix="relax-upload-") as directory:
            path = Path(directory, Path(name).name)
            yield path
            self._fs.put_file(str(path), f"{self._root}/{name}")


def _put_in_place(staged: Path, out: Path) -> None:
    sync_tree(staged)
    replaced = staged.with_name(staged.name + ".replaced")
    if out.exists():
        os.rename(out, replaced)
    os.rename(staged, out)
    sync_path(out.parent)
    if replaced.is_dir():
        shutil.rmtree(replaced)
    else:
        replaced.unlink(missing_ok=True)
