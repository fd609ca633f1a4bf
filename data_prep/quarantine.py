"""Rows set aside: which, why, and enough of their content to find out more, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_TEXT = 2000  # characters of one text that are kept
_ITEMS = 50  # of one list or object
_DEPTH = 8


def quarantine_line(file: str, digest: str, row: int, reason: str, content: Any) -> str:
    """`{"file", "source_digest", "row", "reason", "content"}`; the content is cut to a bounded size."""
    entry = {"file": file, "source_digest": digest, "row": row, "reason": reason, "content": bounded(content)}
    return json.dumps(entry)  # ASCII: whatever was wrong with the text, this file is readable


def bounded(value: Any) -> Any:
    """A value as JSON can hold it, cut to a size that a person looks at."""
    return _bounded(value, _DEPTH)


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}... ({len(value)} characters)"
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): _bounded(value[key], depth - 1) for key in list(value)[:_ITEMS]}
    if isinstance(value, list | tuple):
        return [_bounded(item, depth - 1) for item in value[:_ITEMS]]
    return str(value)[:_TEXT]
