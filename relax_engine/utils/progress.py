"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere.

What lives here: one context manager. What does not: what is being done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """What the body of `with progress(...)` receives."""

    def advance(self, amount: float = 1.0, *, note: str = "") -> None:
        """Count `amount` more; `note` is shown beside the bar, for example the latest reward."""


@cache
def console() -> Console:
    """The one console of this process, on standard error, shared by bars and log lines."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def progress(
    title: str, total: float | None = None, *, stream: TextIO | None = None, interval_s: float = 10.0
) -> Iterator[Progress]:
    """Show the progress of `total` units of work (None: unknown) under `title`.

    On a terminal this is a bar. Elsewhere it is one plain line at the start, at most every `interval_s` seconds,
    and at the end, written to `stream` (standard error by default).
    """
    target = stream or sys.stderr
    if not target.isatty():
        lines = _Lines(title, total, target, interval_s)
        yield lines
        lines.finish()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with RichProgress(*columns, console=console(), transient=False) as bar:
        yield _Bar(bar, title, total)


class _Bar:
    def __init__(self, bar: object, title: str, total: float | None) -> None:
        from rich.progress import Progress as RichProgress

        assert isinstance(bar, RichProgress)
        self._bar = bar
        self._task = bar.add_task(title, total=total, note="")

    def advance(self, amount: float = 1.0, *, note: str = "") -> None:
        """Move the bar."""
        self._bar.update(self._task, advance=amount, note=note)


class _Lines:
    def __init__(self, title: str, total: float | None, stream: TextIO, interval_s: float) -> None:
        self._title, self._total, self._stream, self._interval_s = title, total, stream, interval_s
        self._done, self._note = 0.0, ""
        self._start = self._last = time.monotonic()
        self._write("started")

    def advance(self, amount: float = 1.0, *, note: str = "") -> None:
        """Count, and write a line if the last one is old enough."""
        self._done += amount
        self._note = note
        if time.monotonic() - self._last >= self._interval_s:
            self._write(self._count())

    def finish(self) -> None:
        """Write the last line."""
        self._write(f"{self._count()} in {time.monotonic() - self._start:.1f} s")

    def _count(self) -> str:
        total = "" if self._total is None else f"/{self._total:g}"
        return f"{self._done:g}{total}" + (f" {self._note}" if self._note else "")

    def _write(self, text: str) -> None:
        self._stream.write(f"{self._title}: {text}\n")
        self._stream.flush()
        self._last = time.monotonic()
