"""A filter of system calls (seccomp-bpf, Linux 3.17), built for one process.

What lives here: the filter's program. What does not: which calls it refuses (`syscalls`).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from .kernel import PR_SET_PDEATHSIG, libc_call
from .syscalls import PLATFORMS, Platform

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP, MODE_FILTER = 22, 2
CLONE_THREAD = 0x10000
X32_BIT = 0x40000000

_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def supported() -> bool:
    """Whether we know this processor's system calls."""
    return platform.machine() in PLATFORMS


def install(pid: int) -> None:
    """Filter this process's system calls from now on, and those of its threads; it may signal only itself, `pid`.

    Raises:
        OSError: the kernel refuses.
        KeyError: an unknown processor.
    """
    program = _assemble(PLATFORMS[platform.machine()], pid)
    buffer = ctypes.create_string_buffer(program)
    libc_call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    wrapped = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc_call("prctl", PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(wrapped), 0, 0)


def _assemble(table: Platform, pid: int) -> bytes:
    refuse = _return(0x00050000 | errno.EPERM)
    lines = [
        _line(_LOAD, 0, 0, _ARCH),
        _line(_JUMP_EQUAL, 1, 0, table.arch),
        _return(_KILL),
        _line(_LOAD, 0, 0, _NUMBER),
    ]
    lines += [_line(_JUMP_SET, 0, 1, X32_BIT), refuse]
    for number in table.refused:
        lines += [_line(_JUMP_EQUAL, 0, 1, number), refuse]
    # the C library falls back to clone, whose flags can be seen
    lines += [_line(_JUMP_EQUAL, 0, 1, table.clone3), _return(0x00050000 | errno.ENOSYS)]
    lines += _if_call((table.clone,), [_line(_JUMP_SET, 1, 0, CLONE_THREAD), refuse, _return(_ALLOW)])
    lines += _if_call(table.signals, [_line(_JUMP_EQUAL, 1, 0, pid), refuse, _return(_ALLOW)])
    lines += _if_call((table.prlimit,), [_line(_JUMP_EQUAL, 1, 0, 0), refuse, _return(_ALLOW)])
    lines += _if_call((table.prctl,), [_line(_JUMP_EQUAL, 0, 1, PR_SET_PDEATHSIG), refuse, _return(_ALLOW)])
    return b"".join([*lines, _return(_ALLOW)])


def _if_call(numbers: tuple[int, ...], body: list[bytes]) -> list[bytes]:
    """`body`, with the first argument's lower half loaded, for these calls."""
    lines: list[bytes] = []
    for number in numbers:
        lines += [_line(_JUMP_EQUAL, 0, 1 + len(body), number), _line(_LOAD, 0, 0, _FIRST_ARGUMENT), *body]
    return lines


def _return(value: int) -> bytes:
    return _line(_RETURN, 0, 0, value)


def _line(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
