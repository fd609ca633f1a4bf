"""Loading functions that users name by path: the one loader of every `--...-path` flag.

What lives here: path syntax and loading. What does not: which arguments a hook receives (the part that calls it).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from relax_engine.utils.foreign import foreign_modules


def absolute_reference(path: str) -> str:
    """The path with a relative file made absolute, so that any process can load it."""
    target, separator, name = path.rpartition(":")
    return f"{Path(target).resolve()}:{name}" if separator and target.endswith(".py") else path


@functools.cache
def load_function(path: str) -> Callable[..., Any]:
    """The function at `package.module.function`, `package.module:function` or `file.py:function`.

    Modules are found on the import path and in the working directory. While they load, the names that slime and Relax
    have for the sample are ours (`relax_engine.utils.foreign`).

    Raises:
        ValueError: bad syntax, nothing of that name, or not callable.
        ImportError: the module cannot be imported.
    """
    target, separator, name = path.rpartition(":" if ":" in path else ".")
    if not separator or not target or not name:
        raise ValueError(f"function path {path!r}: write package.module.function or path/file.py:function")
    with foreign_modules():
        module = _load_file(Path(target)) if target.endswith(".py") else _load_module(target, path)
    function: Any = getattr(module, name, None)
    if not callable(function):
        found = "is not callable" if hasattr(module, name) else "does not exist"
        raise ValueError(f"function path {path!r}: {name!r} {found} in {target!r}")
    return function


def _load_module(name: str, path: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ImportError(f"function path {path!r}: there is no module {error.name!r} on the import path") from error


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ImportError(f"Python file {file} does not exist")
    name = "relax_hook_" + hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
