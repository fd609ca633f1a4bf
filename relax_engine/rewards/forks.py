"""The owner's side of the zygote: start it, ask it for workers, end it.

What lives here: process handling with deadlines. What does not: calls and scheduling (`pool`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from relax_engine.rewards.zygote import FORK, KILL, LENGTH, MESSAGE, ZygoteSetup

START_DEADLINE_S = 60.0
ANSWER_DEADLINE_S = 20.0


class ZygoteError(RuntimeError):
    """The process that starts workers died or does not answer."""


class ForkedWorkers:
    """Starts and kills reward workers through one zygote; safe to use from several threads."""

    def __init__(self, args: Any, preload: Sequence[str]) -> None:
        """Start the zygote; it imports in the background, and the first `start_worker` waits for it.

        Raises:
            TypeError: `args` cannot be pickled.
        """
        try:
            setup = pickle.dumps(ZygoteSetup(tuple(preload), args))
        except Exception as error:
            raise TypeError(f"reward workers need a picklable `args`, got {type(args).__name__}: {error}") from error
        self._lock = threading.Lock()
        self._ready = False
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_DEADLINE_S)
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from relax_engine.rewards.zygote import main; main({theirs.fileno()})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._control.sendall(LENGTH.pack(len(setup)) + setup)

    def start_worker(self) -> tuple[int, Connection]:
        """Fork a worker; returns its pid and the connection to it.

        Raises:
            ZygoteError: the zygote died or does not answer.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._ask(FORK, 0, [theirs.fileno()])
        return pid, Connection(ours.detach())

    def kill_worker(self, pid: int) -> str:
        """Kill a worker with all processes of its group, wait for it, and say how it ended.

        Raises:
            ZygoteError: the zygote died or does not answer.
        """
        status = self._ask(KILL, pid, [])
        code = os.waitstatus_to_exitcode(status)
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def close(self) -> None:
        """End the zygote and every worker; returns when the zygote is gone."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(ANSWER_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(ANSWER_DEADLINE_S)
        with self._lock:
            self._control.close()

    def _ask(self, kind: bytes, pid: int, descriptors: list[int]) -> int:
        with self._lock:
            try:
                if not self._ready:
                    self._read()
                    self._control.settimeout(ANSWER_DEADLINE_S)
                    self._ready = True
                socket.send_fds(self._control, [MESSAGE.pack(kind, pid)], descriptors)
                return self._read()
            except OSError as error:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
                state = f"ended with {self._process.returncode}" if self._process.poll() is not None else "is stuck"
                raise ZygoteError(f"the process that starts reward workers {state}: {error!r}") from error

    def _read(self) -> int:
        data = b""
        while len(data) < MESSAGE.size:
            part = self._control.recv(MESSAGE.size - len(data))
            if not part:
                raise ConnectionResetError("end of file")
            data += part
        value: int = MESSAGE.unpack(data)[1]
        return value
