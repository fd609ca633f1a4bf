"""Access to files by Landlock (Linux 5.13): read the interpreter and its libraries, write one directory, no more."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from .kernel import libc_call, system_call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION = 1
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE = 1 << 14
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
RIGHTS_OF_VERSION = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 4: 1 << 15, 5: 1 << 16}
NET_RIGHTS = 0b11
SCOPES = 0b11  # abstract sockets and signals outside of the domain
PR_SET_NO_NEW_PRIVS = 38


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The version of Landlock that the kernel has; 0 for none."""
    try:
        return system_call(CREATE_RULESET, None, 0, ASK_VERSION)
    except OSError:
        return 0


def restrict(readable: Iterable[str], writable: str) -> None:
    """Confine this process: read and execute below `readable` paths that exist, everything below `writable`.

    Raises:
        OSError: the kernel has no Landlock.
    """
    kernel = version()
    handled = RIGHTS_OF_VERSION.get(kernel, 1 << 16) - 1
    rules = _Ruleset(handled, NET_RIGHTS if kernel >= 4 else 0, SCOPES if kernel >= 6 else 0)
    size = 24 if kernel >= 6 else 16 if kernel >= 4 else 8
    ruleset = system_call(CREATE_RULESET, ctypes.byref(rules), size, 0)
    for path in readable:
        _allow(ruleset, path, EXECUTE | READ_FILE | READ_DIR)
    _allow(ruleset, writable, handled)
    libc_call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    system_call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= FILE_RIGHTS
    rule = _PathBeneath(rights, descriptor)
    system_call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(descriptor)
