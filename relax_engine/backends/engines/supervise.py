"""`python supervise.py PARENT_PID DRAIN_S COMMAND...`: run a server that has processes of its own.

The server and all that it starts end with the process that asked for them, however that ends. SIGTERM is handed on, so
that the server can answer what it has; after DRAIN_S seconds it is killed. Ends with the server's status. Nothing but
the standard library is imported: this process lives as long as the server and is to cost nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Run the command of `argv` until it ends, the parent ends, or SIGTERM comes."""
    parent, drain_s, command = int(argv[0]), float(argv[1]), argv[2:]
    told: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
    server = subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_supervisor)
    handed_on = False
    while server.poll() is None:
        if os.getppid() != parent or (told and time.monotonic() - told[0] > drain_s):
            _kill_group(server.pid)
        elif told and not handed_on:
            server.terminate()
            handed_on = True
        time.sleep(_POLL_S)
    _kill_group(server.pid)
    if told:
        return 128 + signal.SIGTERM
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _die_with_supervisor() -> None:
    """In the server, before it runs: let the kernel kill it with this process. Its own processes watch it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
