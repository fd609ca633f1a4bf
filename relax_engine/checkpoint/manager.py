"""Iteration directories of a run: which exist, which are whole, which is newest.

What lives here: names, completeness, commit and pruning. What is inside an iteration directory is its
writer's matter (``MegatronBackend.save``, ``import_checkpoint``).

Layout of a root::

    iter_0000100/               a complete checkpoint
        checkpoint.json         schema, iteration, and the size of every file; written last
        ...
    iter_0000200.partial/       being written, or left by a killed saver
    latest_checkpointed_iteration.txt   for Megatron's own tools; this module trusts the directories

Life of one: ``begin`` (empty ``.partial``) -> writers fill it -> ``commit`` (fsync, marker, rename,
tracker file). A saver killed at any point leaves a ``.partial`` directory, which is never chosen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relax_engine.checkpoint.durable import remove_tree, sync_path, sync_tree, write_atomically
from relax_engine.checkpoint.errors import CheckpointNotFoundError
from relax_engine.checkpoint.marker import MARKER, Marker, incompleteness

TRACKER = "latest_checkpointed_iteration.txt"

_ITERATION = re.compile(r"iter_(\d{7,})(\.replaced)?")
_LEFTOVER = re.compile(r"iter_(\d{7,})\.(?:partial|replaced)|\.iter_\d+.*\.removed")

logger = logging.getLogger(__name__)


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint: its iteration and its directory."""

    iteration: int
    path: Path


class CheckpointManager:
    """The iteration directories under one root. One process writes at a time; any number may read."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def path(self, iteration: int) -> Path:
        """Where the complete checkpoint of ``iteration`` is or will be."""
        return self.root / iteration_name(iteration)

    def begin(self, iteration: int) -> Path:
        """An empty ``.partial`` directory to write into; what a killed saver left there is removed."""
        partial = self._partial(iteration)
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        return partial

    def commit(self, iteration: int, optimizer: bool | None = None) -> SavedCheckpoint:
        """Make what was written since ``begin`` the complete checkpoint of ``iteration``.

        Call once, after every writer has finished. A checkpoint of the same iteration is replaced.

        Args:
            optimizer: whether it holds optimizer state.

        Raises:
            CheckpointNotFoundError: ``begin`` was not called.
        """
        partial, final = self._partial(iteration), self.path(iteration)
        if not partial.is_dir():
            raise CheckpointNotFoundError(f"nothing to commit: {partial} does not exist; call begin({iteration}) first")
        sync_tree(partial)
        write_atomically(partial / MARKER, Marker(iteration, _sizes(partial), optimizer).to_json())
        replaced = final.with_name(final.name + ".replaced")
        if final.exists():
            if replaced.exists():
                remove_tree(replaced)
            os.rename(final, replaced)
        os.rename(partial, final)
        sync_path(self.root)
        write_atomically(self.root / TRACKER, str(iteration))
        if replaced.exists():
            remove_tree(replaced)
        logger.info("saved checkpoint of iteration %d to %s", iteration, final)
        return SavedCheckpoint(iteration, final)

    @contextlib.contextmanager
    def writing(self, iteration: int, optimizer: bool | None = None) -> Iterator[Path]:
        """``begin`` and ``commit`` around a block of one process; an exception leaves nothing behind."""
        partial = self.begin(iteration)
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.commit(iteration, optimizer)

    def complete_iterations(self) -> list[int]:
        """Iterations with a complete checkpoint, ascending.

        Raises:
            CheckpointSchemaError: one was written in a layout of another release.
        """
        return [saved.iteration for saved in self.complete()]

    def complete(self) -> list[SavedCheckpoint]:
        """All complete checkpoints, oldest first.

        Raises:
            CheckpointSchemaError: one was written in a layout of another release.
        """
        directories = sorted(self._directories().items())
        return [SavedCheckpoint(*item) for item in directories if _incompleteness(item[1]) is None]

    def latest(self) -> SavedCheckpoint | None:
        """The newest complete checkpoint, or None. A newer directory that is not complete is named in a warning.

        Raises:
            CheckpointSchemaError: the newest one was written in a layout of another release.
        """
        for iteration, path in sorted(self._directories().items(), reverse=True):
            problem = _incompleteness(path)
            if problem is None:
                return SavedCheckpoint(iteration, path)
            logger.warning("passing over checkpoint %s: %s; looking for an older one", path, problem)
        return None

    def prune(self, keep: int) -> list[int]:
        """Delete all complete checkpoints but the ``keep`` newest, and what killed savers left; returns the deleted.

        Raises:
            ValueError: ``keep`` is less than 1.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}: the newest checkpoint is never deleted")
        complete = self.complete()
        for saved in complete[:-keep]:
            remove_tree(saved.path)
        newest = complete[-1].iteration if complete else -1
        for entry in self.root.iterdir() if self.root.is_dir() else ():
            match = _LEFTOVER.fullmatch(entry.name)
            if match and (match.group(1) is None or int(match.group(1)) < newest):
                shutil.rmtree(entry)
        return [saved.iteration for saved in complete[:-keep]]

    def _partial(self, iteration: int) -> Path:
        final = self.path(iteration)
        return final.with_name(final.name + ".partial")

    def _directories(self) -> dict[int, Path]:
        """Iteration -> directory; one whose replacement was cut short between two renames is its ``.replaced``."""
        found: dict[int, Path] = {}
        for entry in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            match = _ITERATION.fullmatch(entry.name)
            if match:
                found.setdefault(int(match.group(1)), entry)
        return found


def iteration_name(iteration: int) -> str:
    """Name of an iteration's directory."""
    return f"iter_{iteration:07d}"


def read_marker(directory: Path) -> Marker:
    """What the complete checkpoint in ``directory`` holds.

    Raises:
        CheckpointNotFoundError: it has no marker.
        CheckpointSchemaError: it was written in a layout of another release.
    """
    try:
        return Marker.from_json((directory / MARKER).read_text(encoding="utf-8"), where=directory / MARKER)
    except FileNotFoundError:
        raise CheckpointNotFoundError(f"{directory} has no {MARKER}: not a complete checkpoint") from None


def _incompleteness(directory: Path) -> str | None:
    """Why the directory is not a complete checkpoint; None when it is."""
    try:
        text = (directory / MARKER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"it has no {MARKER}"
    return incompleteness(text, _sizes(directory), where=directory / MARKER)


def _sizes(directory: Path) -> dict[str, int]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != MARKER)
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
