"""A small single-threaded process that forks reward workers on request.

Why: workers must start in milliseconds (a stuck one is killed and replaced), share the imports of
the built-in rewards, and never be forked from a process that has threads, torch or Ray in it. The
standard library's fork server runs the parent's `__main__` again in each child and outlives its
pool; this one does neither.

What lives here: fork, kill, wait. What does not: calls (`worker`), scheduling (`pool`).

Protocol over one stream socket, strictly request and answer: after a length-prefixed pickled
`ZygoteSetup`, requests and answers are `MESSAGE` structs. `FORK` carries the worker's socket as a file
descriptor and is answered by its pid; `KILL` carries a pid and is answered by its wait status. A
worker stays a zombie until `KILL` is asked for, so a pid never names another process. End of file
means that the owner is gone: every worker is killed and the zygote exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import os
import pickle
import random
import signal
import socket
import struct
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from relax_engine.rewards.worker import serve_calls

MESSAGE = struct.Struct("!cq")
LENGTH = struct.Struct("!Q")
FORK, KILL = b"f", b"k"
PR_SET_PDEATHSIG = 1


class ZygoteSetup(NamedTuple):
    """`args` is handed to reward functions; `preload` modules are imported once, before any fork.

    A preloaded module's `warm_up()`, if it has one, is called too: workers inherit its caches.
    """

    preload: tuple[str, ...]
    args: Any


def main(control_fd: int) -> None:
    """Serve until the owner closes the control socket."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed worker must not swallow what was printed
    with socket.socket(fileno=control_fd) as control:
        (size,) = LENGTH.unpack(_receive(control, LENGTH.size))
        setup: ZygoteSetup = pickle.loads(_receive(control, size))
        for module in setup.preload:
            warm_up = getattr(importlib.import_module(module), "warm_up", None)
            if warm_up is not None:
                warm_up()
        gc.freeze()
        control.sendall(MESSAGE.pack(FORK, 0))
        workers: set[int] = set()
        try:
            while _answer(control, setup.args, workers):
                pass
        except ConnectionError:
            pass  # the owner closed while an answer was on its way
        finally:
            for pid in workers:
                _kill(pid)


def _answer(control: socket.socket, args: Any, workers: set[int]) -> bool:
    message, descriptors, _, _ = socket.recv_fds(control, MESSAGE.size, 1)
    if not message:
        return False
    kind, pid = MESSAGE.unpack(message)
    if kind == FORK:
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_worker(descriptors[0], args)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        os.close(descriptors[0])
        workers.add(pid)
        control.sendall(MESSAGE.pack(FORK, pid))
    else:
        workers.discard(pid)
        control.sendall(MESSAGE.pack(KILL, _kill(pid)))
    return True


def _become_worker(descriptor: int, args: Any) -> None:
    exit_code = 1
    try:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(0, 0)
        _die_with_zygote()
        random.seed()
        serve_calls(Connection(descriptor), args)
        exit_code = 0
    except BrokenPipeError:
        exit_code = 0
    finally:
        os._exit(exit_code)


def _die_with_zygote() -> None:
    """Have the kernel kill this process when its parent ends, however that happens (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return status


def _receive(control: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = control.recv(min(size - len(data), 1 << 20))
        if not part:
            raise SystemExit(0)
        data += part
    return bytes(data)
