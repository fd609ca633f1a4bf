"""Cache keys by content: what decides whether a task runs again.

A file or directory given to a workflow is keyed by the bytes it holds and by the artifact store the results go to, not
by its path. A configuration file is keyed by the code of the hooks it names as well. All tasks are keyed by the source
code of this project.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Annotated

from flytekit import HashMethod
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("relax_engine", "data_prep", "tasks", "workflows")


def file_key(file: FlyteFile | str) -> str:
    """Key of one file: its SHA-256 and the store's id."""
    with open(os.fspath(file), "rb") as stream:
        return _key(hashlib.file_digest(stream, "sha256").hexdigest())


def directory_key(directory: FlyteDirectory | str) -> str:
    """Key of a directory: relative paths and bytes of its files, and the store's id."""
    root = Path(os.fspath(directory))
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest.update(
            f"{path.relative_to(root).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return _key(digest.hexdigest())


def config_key(file: FlyteFile | str) -> str:
    """Key of a configuration file: its bytes and the source files of the hooks it names."""
    import yaml

    path = Path(os.fspath(file))
    digest = hashlib.sha256(path.read_bytes())
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for source in sorted(_hook_files(content)):
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()


ContentFile = Annotated[FlyteFile, HashMethod(file_key)]
ContentDirectory = Annotated[FlyteDirectory, HashMethod(directory_key)]
ConfigFile = Annotated[FlyteFile, HashMethod(config_key)]


@functools.cache
def source_digest() -> str:
    """SHA-256 (first 16 hex digits) of this project's Python sources: the cache version of every task."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _key(digest: str) -> str:
    from tasks.store import open_store

    return f"{digest}:{open_store().store_id}"


def _hook_files(content: object) -> set[str]:
    """Source files of all values that name a function, in whichever section they stand."""
    if not isinstance(content, dict):
        return set()
    found: set[str] = set()
    for key, value in content.items():
        if isinstance(value, dict):
            found |= _hook_files(value)
        elif str(key).replace("-", "_").endswith("_path") and isinstance(value, str):
            found |= _file_of(value)
    return found


def _file_of(path: str) -> set[str]:
    """The file behind `package.module.function`, `file.py:function` or a plain file; empty if there is none.

    A name that cannot be found is left to the doctor, whose error says more.
    """
    target = path.rpartition(":" if ":" in path else ".")[0]
    if target.endswith(".py") or os.path.isfile(path):
        file = target if target.endswith(".py") else path
        return {file} if os.path.isfile(file) else set()
    try:
        spec = importlib.util.find_spec(target) if target else None
    except (ModuleNotFoundError, ValueError):
        return set()
    return {spec.origin} if spec and spec.origin else set()
