"""Directories that appear whole or not at all, and that survive a power loss once they appear."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path


def sync_tree(directory: Path) -> None:
    """Flush every file and folder under ``directory``, and itself, to the disk."""
    for folder, _, files in os.walk(directory):
        for file in files:
            sync_path(Path(folder) / file)
        sync_path(Path(folder))


def sync_path(path: Path) -> None:
    """Flush one file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file so that readers see the old text or the new one, never a part."""
    staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    staged.write_text(text, encoding="utf-8")
    sync_path(staged)
    os.replace(staged, path)
    sync_path(path.parent)


def remove_tree(directory: Path) -> None:
    """Delete a directory after taking its name away, so that nobody meets it half deleted."""
    doomed = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.removed")
    os.rename(directory, doomed)
    shutil.rmtree(doomed)
