"""A time limit on a piece of pure Python in whatever thread runs it.

What lives here: interrupting between two bytecodes. What does not: limits on code that does not come back to the
interpreter; for that, calls run in processes that can be killed (`pool`). An alarm signal would work in the main thread
alone, and the same answer must get the same verdict everywhere.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

AGAIN_SECONDS = 0.5

T = TypeVar("T")


class Overdue(BaseException):
    """Raised inside the call, where `except Exception` does not stop it; raised again if something else did."""


def within(seconds: float, call: Callable[[], T]) -> T | None:
    """The result of `call()`, or None if it took longer than `seconds`."""
    thread = threading.get_ident()
    lock, finished = threading.Lock(), threading.Event()

    def watch() -> None:
        pause = seconds
        while not finished.wait(pause):
            pause = AGAIN_SECONDS
            with lock:
                if not finished.is_set():
                    _raise_in(thread, Overdue)

    threading.Thread(target=watch, name="reward-deadline", daemon=True).start()
    result: T | None = None
    try:
        try:
            result = call()
        finally:
            with lock:
                finished.set()
    except Overdue:
        finished.set()
        result = None
    _raise_in(thread, None)  # one that was on its way when the call ended
    return result


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    argument = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
