"""Finding a reward function by its path, and calling it in the way its signature asks for.

What lives here: path syntax, loading, arity. What does not: where and for how long it runs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

RewardFunction = Callable[..., Any]


def absolute_reference(path: str) -> str:
    """The path with a relative file made absolute, so that any process can load it."""
    target, separator, name = path.rpartition(":")
    return f"{Path(target).resolve()}:{name}" if separator and target.endswith(".py") else path


@functools.cache
def load_function(path: str) -> RewardFunction:
    """The function at `package.module.function`, `package.module:function` or `file.py:function`.

    Modules are found on the import path and in the working directory.

    Raises:
        ValueError: bad syntax, nothing of that name, or not callable.
        ImportError: the module cannot be imported.
    """
    target, separator, name = path.rpartition(":" if ":" in path else ".")
    if not separator or not target or not name:
        raise ValueError(f"reward path {path!r}: write package.module.function or path/file.py:function")
    module = _load_file(Path(target)) if target.endswith(".py") else _load_module(target, path)
    function = getattr(module, name, None)
    if not callable(function):
        found = "is not callable" if hasattr(module, name) else "does not exist"
        raise ValueError(f"reward path {path!r}: {name!r} {found} in {target!r}")
    return function


def is_async(function: RewardFunction) -> bool:
    """Whether calling the function gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def call_reward(function: RewardFunction, args: Any, payload: Any) -> Any:
    """Call `function(args, payload)`, or `function(payload)` if that is its signature.

    `payload` is a sample, or a list of samples. A function takes the payload alone if its first
    parameter is named `sample` or `samples`, or if it cannot be given two positional arguments.
    """
    return function(payload) if _takes_payload_only(function) else function(args, payload)


def _takes_payload_only(function: RewardFunction) -> bool:
    signature = inspect.signature(function)
    parameters = list(signature.parameters)
    if parameters and parameters[0] in ("sample", "samples"):
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return True
    return False


def _load_module(name: str, path: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ImportError(f"reward path {path!r}: there is no module {error.name!r} on the import path") from error


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ImportError(f"reward file {file} does not exist")
    name = "relax_reward_" + hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"reward file {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
