"""Loading functions that users name by path: the one loader of every `--...-path` flag.

What lives here: path syntax and loading. What does not: which arguments a hook receives (the part that calls it).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from relax_engine.utils.foreign import foreign_modules

CODE_PATHS_VARIABLE = "RELAX_USER_CODE_PATHS"
"""The declared paths, for this process and those that it starts."""

_OWN = Path(__file__).resolve().parents[1]


def declare_code_paths(paths: Sequence[str]) -> None:
    """Have `load_function` load from these files and directories, and from this package, only; none for anywhere."""
    if paths:
        os.environ[CODE_PATHS_VARIABLE] = os.pathsep.join(str(Path(path).resolve()) for path in paths)
    else:
        os.environ.pop(CODE_PATHS_VARIABLE, None)


def undeclared(path: str, declared: Sequence[str | Path]) -> str | None:
    """Where the function at `path` would be loaded from, if that is in none of `declared`; imports nothing."""
    target = path.rpartition(":" if ":" in path else ".")[0]
    if target.endswith(".py"):
        homes = [Path(target)]
    else:
        spec = importlib.util.find_spec(target.partition(".")[0])
        homes = [] if spec is None else [Path(home) for home in spec.submodule_search_locations or [spec.origin or ""]]
    allowed = [_OWN, *(Path(each).resolve() for each in declared)]
    outside = [home for home in homes if not any(home.resolve().is_relative_to(each) for each in allowed)]
    return str(outside[0]) if outside else None


class _HookLoader(SourceFileLoader):
    """Loads a hook's file; a method that awaits is a coroutine, also where its `async` was left out."""

    def source_to_code(self, data: Any, path: Any, **_: Any) -> CodeType:  # type: ignore[override]
        """The compiled source."""
        tree = _Awaiting().visit(ast.parse(data, path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Awaiting(ast.NodeTransformer):
    """Makes functions coroutines whose own statements await."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A plain function."""
        self.generic_visit(node)
        if not any(isinstance(inner, ast.Await) for statement in node.body for inner in _own(statement)):
            return node
        fields = {name: getattr(node, name) for name in node._fields}
        return ast.copy_location(ast.AsyncFunctionDef(**fields), node)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, without the functions defined there."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own(child)


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
        ImportError: the module cannot be imported, or lies in none of the declared paths.
    """
    target, separator, name = path.rpartition(":" if ":" in path else ".")
    if not separator or not target or not name:
        raise ValueError(f"function path {path!r}: write package.module.function or path/file.py:function")
    module = load_module(target, path)
    function: Any = getattr(module, name, None)
    if not callable(function):
        found = "is not callable" if hasattr(module, name) else "does not exist"
        raise ValueError(f"function path {path!r}: {name!r} {found} in {target!r}")
    return function


def load_module(target: str, path: str | None = None) -> ModuleType:
    """The module of a hook, by dotted name or file; `path` is what an error names.

    Raises:
        ImportError: it cannot be imported, or lies outside of what `--user-code-paths` declares.
    """
    path = path or f"{target}:module"
    _require_declared(path)
    with foreign_modules():
        return _load_file(Path(target)) if target.endswith(".py") else _load_module(target, path)


def _require_declared(path: str) -> None:
    declared = os.environ.get(CODE_PATHS_VARIABLE)
    home = None if declared is None else undeclared(path, declared.split(os.pathsep))
    if home is not None:
        raise ImportError(f"function path {path!r}: {home} is in none of --user-code-paths ({declared})")


def _load_module(name: str, path: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except SyntaxError:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise
        return _load_file(Path(spec.origin))
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
    spec = importlib.util.spec_from_file_location(name, file, loader=_HookLoader(name, str(file)))
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
