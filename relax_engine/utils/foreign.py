"""Names under which code written for slime or Relax imports the sample.

What lives here: modules `slime.utils.types` and `relax.utils.types` that stand for `relax_engine.types` while user
code is loaded. What does not: the rest of those packages. Where one of them is installed, it is what is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from relax_engine.types import Sample, SampleStatus

_TYPES: dict[str, Any] = {"Sample": Sample, "SampleStatus": SampleStatus, "RolloutBatch": dict[str, Any]}
_MODULES: dict[str, dict[str, Any]] = {
    f"{package}{path}": names
    for package in ("slime", "relax")
    for path, names in {"": {}, ".utils": {}, ".utils.types": _TYPES}.items()
}
_lock = threading.RLock()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules of `_MODULES`; `made` are those it has made."""

    def __init__(self) -> None:
        self.made: dict[str, ModuleType] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=not fullname.endswith(".types"))

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(_MODULES[module.__name__])
        self.made[module.__name__] = module


@contextmanager
def foreign_modules() -> Iterator[None]:
    """Let `from slime.utils.types import Sample` give our `Sample`; afterwards nobody finds the modules any more."""
    with _lock:
        finder = _Finder()
        sys.meta_path.append(finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for name, module in finder.made.items():
                if sys.modules.get(name) is module:
                    del sys.modules[name]
