"""Stack samples of this process: every thread and every asyncio task."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import Any


def sample_stacks(limit: int = 12) -> dict[str, str]:
    """The innermost `limit` frames of each thread (`thread NAME`) and each task of the running loop (`task NAME`)."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    stacks = {}
    for ident, frame in sys._current_frames().items():
        if ident != own:
            lines = traceback.format_list(traceback.extract_stack(frame)[-limit:])
            stacks[f"thread {names.get(ident, ident)}"] = "".join(lines)
    for task in _tasks():
        if not task.done():
            stacks[f"task {task.get_name()}"] = "".join(_awaits(task.get_coro())[-limit:])
    return stacks


def _awaits(awaited: Any) -> list[str]:
    """Where a suspended coroutine and each one that it awaits in turn are, outermost first."""
    lines = []
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n')
        awaited = awaited.cr_await
    return lines


def _tasks() -> set[asyncio.Task[object]]:
    try:
        return asyncio.all_tasks()
    except RuntimeError:
        return set()
