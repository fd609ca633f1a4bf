"""A server with processes of its own ends as a whole, whoever ends first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from relax_engine.backends.engines import supervise

DRAIN_S = 2.0
# A server that starts a process, tells both ids, and says what it hears on SIGTERM.
SERVER = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
def told(*_):
    pathlib.Path(sys.argv[1], "told").touch()
    if sys.argv[2] == "drains":
        sys.exit(0)
signal.signal(signal.SIGTERM, told)
partial = pathlib.Path(sys.argv[1], "partial")
partial.write_text(f"{os.getpid()} {child.pid}")
partial.rename(pathlib.Path(sys.argv[1], "ids"))
time.sleep(60)
"""
# Somebody who starts the supervisor and waits.
PARENT = """
import os, subprocess, sys
sys.exit(subprocess.run([sys.executable, "-P", sys.argv[1], str(os.getpid()), "2", *sys.argv[2:]]).returncode)
"""

Start = Callable[[str], tuple[subprocess.Popen[bytes], list[psutil.Process]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Parent, supervisor, server and the server's process; returns the first and the other three."""
    started: list[psutil.Process] = []

    def run(kind: str) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
        server = [sys.executable, "-c", textwrap.dedent(SERVER), str(tmp_path), kind]
        parent = subprocess.Popen([sys.executable, "-c", PARENT, supervise.__file__, *server])
        deadline = time.monotonic() + 30
        while not (tmp_path / "ids").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        processes = [psutil.Process(int(pid)) for pid in (tmp_path / "ids").read_text().split()]
        started[:] = [psutil.Process(processes[0].ppid()), *processes]
        return parent, list(started)

    yield run
    for process in started:
        if process.is_running():
            process.kill()


@pytest.mark.parametrize("victim", ["parent", "supervisor", "server"])
def test_a_kill_of_one_ends_all(start: Start, victim: str) -> None:
    parent, (supervisor, server, child) = start("drains")
    pid = {"parent": parent.pid, "supervisor": supervisor.pid, "server": server.pid}[victim]
    os.kill(pid, signal.SIGKILL)
    status = parent.wait(20)
    # The server's own process is nobody's after a kill of the supervisor alone: SGLang's watch their parent.
    watched = [supervisor, server] if victim == "supervisor" else [supervisor, server, child]
    assert psutil.wait_procs(watched, timeout=20)[1] == []
    assert victim != "server" or status == 128 + signal.SIGKILL


@pytest.mark.parametrize("kind", ["drains", "hangs"])
def test_sigterm_is_handed_on_and_does_not_wait_forever(start: Start, kind: str, tmp_path: Path) -> None:
    parent, processes = start(kind)
    started = time.monotonic()
    processes[0].terminate()
    assert parent.wait(DRAIN_S + 10) == 128 + signal.SIGTERM
    assert (tmp_path / "told").exists()
    assert (time.monotonic() - started < DRAIN_S) is (kind == "drains")
    assert psutil.wait_procs(processes, timeout=20)[1] == []
