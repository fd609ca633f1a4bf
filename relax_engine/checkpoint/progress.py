"""Progress of long byte work: a bar on a terminal, a log line every tenth otherwise."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)
_MEGABYTE = 1e6


@contextlib.contextmanager
def byte_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Within the block, call the yielded function with each number of bytes just done."""
    if sys.stderr.isatty():
        with _bar(label, total) as advance:
            yield advance
    else:
        yield _lines(label, total)


@contextlib.contextmanager
def _bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


def _lines(label: str, total: int) -> Callable[[int], None]:
    done = tenths = 0

    def advance(count: int) -> None:
        nonlocal done, tenths
        done += count
        reached = 10 * done // max(total, 1)
        if reached > tenths:
            tenths = reached
            logger.info("%s: %d%% (%.1f of %.1f MB)", label, 10 * tenths, done / _MEGABYTE, total / _MEGABYTE)

    return advance
