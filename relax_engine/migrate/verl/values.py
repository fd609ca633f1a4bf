"""Readers of verl's values.

What lives here: files, dataset names and numbers. What does not: settings.
"""

from __future__ import annotations

from pathlib import PurePath

from relax_engine.migrate.draft import read_value
from relax_engine.migrate.shell.symbols import is_known, render


def paths(text: str) -> list[str]:
    """The files that `text` lists: `a`, `[a, b]` or `['a', "b"]`."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
        return [item.strip().strip("'\"") for item in inner.split(",") if item.strip()]
    return [inner]


def by_name(files: list[str]) -> dict[str, list[str]]:
    """Evaluation files by the name of their dataset: the file's, or its folder's where that says nothing."""
    named: dict[str, list[str]] = {}
    for file in files:
        path = PurePath(render(file))
        generic = path.stem in ("test", "val", "valid", "validation", "eval", "dev")
        name = path.parent.name if generic and path.parent.name and "$" not in path.parent.name else path.stem
        named.setdefault(name.strip("$(){}") or "eval", []).append(file)
    return named


def number(text: str | None) -> int | None:
    """The whole number that `text` spells, else None."""
    value = read_value(text) if text is not None and is_known(text) else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
