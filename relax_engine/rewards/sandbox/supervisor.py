"""The process that runs programs: one confined child per input, one after the other.

What lives here: fork, limits on time, collecting results. It is a script: it reads one job from standard input as JSON
and writes one JSON line per input. What does not: expected outputs. The child is a copy of this process, and a program
could find whatever this process knows.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

from .confine import MIB, confine, library_directory
from .kernel import die_with_parent
from .limits import Limits

SETUP_FAILED = 97
ERRORS_KEPT = 2000


def main() -> None:
    """Run the job on standard input."""
    die_with_parent()
    job = json.load(sys.stdin)
    code, limits = job["code"], Limits(*job["limits"])
    sys.path.append(library_directory())
    sys.setrecursionlimit(10_000)
    with tempfile.TemporaryDirectory(prefix="relax-sandbox-", ignore_cleanup_errors=True) as directory:
        for item in job["inputs"]:
            outcome = _run(code, item, limits, directory)
            sys.stdout.write(json.dumps(outcome) + "\n")
            sys.stdout.flush()
            if outcome["ended"] == "refused" or (job["stop_at_failure"] and outcome["ended"] != "exit"):
                return


def _run(code: str, item: dict[str, Any], limits: Limits, directory: str) -> dict[str, Any]:
    streams = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr", "value")]
    os.write(streams[0], item.get("stdin", "").encode())
    os.lseek(streams[0], 0, os.SEEK_SET)
    started = time.monotonic()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(code, item, limits, directory, streams, parent)
    waiter = os.pidfd_open(pid)
    on_time = bool(select.select([waiter], [], [], limits.wall_s)[0])
    if not on_time:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    os.close(waiter)
    exit_code = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    outcome = {
        "ended": _ended(on_time, exit_code, cpu_s, limits),
        "exit_code": exit_code,
        "stdout": _content(streams[1], limits.output_mb * MIB),
        "stderr": _content(streams[2], limits.output_mb * MIB)[-ERRORS_KEPT:],
        "value": _content(streams[3], limits.output_mb * MIB),
        "cpu_s": round(cpu_s, 3),
        "wall_s": round(time.monotonic() - started, 3),
    }
    for stream in streams:
        os.close(stream)
    return outcome


def _ended(on_time: bool, exit_code: int, cpu_s: float, limits: Limits) -> str:
    if not on_time:
        return "wall time"
    if exit_code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= limits.cpu_s - 0.5:
        return "CPU time"
    if exit_code == SETUP_FAILED:
        return "refused"
    return "exit" if exit_code == 0 else "error" if exit_code > 0 else "signal"


def _content(descriptor: int, most: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    data = bytearray()
    while len(data) < most and (part := os.read(descriptor, min(MIB, most - len(data)))):
        data += part
    return data.decode(errors="replace")


def _child(code: str, item: dict[str, Any], limits: Limits, directory: str, streams: list[int], parent: int) -> None:
    """Become the program; never returns."""
    exit_code = SETUP_FAILED
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(len(streams), 1024)
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, mode, closefd=False), encoding="utf-8", line_buffering=number > 0)
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        confine(limits, directory, parent)
        exit_code = _execute(code, item)
    except BaseException:  # noqa: BLE001 - whatever it was, this copy of the supervisor must end here
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(exit_code)


def _execute(code: str, item: dict[str, Any]) -> int:
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        exec(compile(code, "solution.py", "exec"), space)
        if "function" in item:
            value = _function(space, item["function"])(*item["arguments"])
            sys.stdout.flush()
            os.write(3, json.dumps(value, default=_plain).encode())
        if "check" in item:
            exec(compile(item["check"], "check.py", "exec"), space)
            os.write(3, item["token"].encode())
    except SystemExit as error:
        if "function" in item or "check" in item:
            return 1
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the program's own
        traceback.print_exc()
        return 1
    return 0


def _function(space: dict[str, Any], name: str) -> Any:
    if name in space:
        return space[name]
    return getattr(space["Solution"](), name)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return list(value)
