"""The end of another process's log, for the error that its death causes."""

from __future__ import annotations

import re
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TAIL_BYTES = 16384


def log_tail(path: Path, lines: int = 12) -> str:
    """The last `lines` lines without colours; empty when the file is empty, absent, or on another node."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(_COLOUR.sub("", text).rstrip().splitlines()[-lines:])
