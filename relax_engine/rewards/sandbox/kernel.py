"""System calls that the standard library does not offer."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def libc_call(name: str, *arguments: object) -> int:
    """A function of the C library.

    Raises:
        OSError: it returned -1.
    """
    result: int = getattr(_libc, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent's thread ends; forgotten when credentials change."""
    libc_call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def system_call(number: int, *arguments: object) -> int:
    """A system call by its number; arguments that are integers are passed as machine words.

    Raises:
        OSError: it failed.
    """
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return libc_call("syscall", ctypes.c_long(number), *words)
