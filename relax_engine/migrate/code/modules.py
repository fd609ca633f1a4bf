"""Where an imported module's file is.

What lives here: resolving names against the recipe's folder and the source's checkout. What does not: installed
packages, whose imports stay as they are.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

FOREIGN = ("verl", "redaccel")
"""Packages whose imports are taken out of migrated code."""


@dataclass(frozen=True, slots=True)
class Place:
    """A source file, and the folder that absolute imports are looked up in besides its own."""

    file: Path
    root: Path

    def find(self, module: str, level: int) -> Path | None:
        """The file of `module`, imported with `level` leading dots; None for what is not part of the source."""
        if level:
            base = self.file.parent
            for _ in range(level - 1):
                base = base.parent
            return _file(base, module)
        if module.partition(".")[0] in sys.stdlib_module_names:
            return None
        beside = [] if (self.file.parent / "__init__.py").is_file() else [self.file.parent]
        for base in (*beside, self.root):
            found = _file(base, module)
            if found is not None and found != self.file:
                return found
        return None


def is_foreign(module: str) -> bool:
    """Whether a module belongs to a framework that recipes leave behind."""
    return module.partition(".")[0] in FOREIGN


def _file(base: Path, module: str) -> Path | None:
    path = base.joinpath(*module.split(".")) if module else base
    if path.with_suffix(".py").is_file() and module:
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None
