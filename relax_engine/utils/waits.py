"""What this process waits for right now, so that a run that stands still can say who waits for whom.

A registry for reports only: nothing is decided by it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator

_numbers = itertools.count()
_waits: dict[int, tuple[str, float]] = {}


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Inside the block this process waits for `what`."""
    number = next(_numbers)
    _waits[number] = (what, time.monotonic())
    try:
        yield
    finally:
        del _waits[number]


def current_waits() -> list[tuple[str, float]]:
    """Everything that is waited for, with seconds since, longest first."""
    now = time.monotonic()
    return sorted(((what, now - since) for what, since in list(_waits.values())), key=lambda wait: -wait[1])
