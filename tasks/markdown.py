"""Markdown for the reports stored beside artifacts.

What lives here: tables. What does not: pictures (`relax_engine.observe.plots`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with a column for each key of the first row; None is an empty cell."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(map(_cell, row.values())) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if value == 0 or abs(value) >= 0.1 else f"{value:.3g}"
    return str(value)
