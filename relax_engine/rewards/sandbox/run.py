"""Running a program in the sandbox, from the process that knows the right answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relax_engine.rewards.sandbox.confine import missing_layers
from relax_engine.rewards.sandbox.limits import Limits

START_SECONDS = 10.0
_FOLDER = str(Path(__file__).resolve().parents[1])
_START = f"import sys; sys.path.append({_FOLDER!r}); from sandbox.supervisor import main; sys.path.pop(); main()"


class SandboxError(RuntimeError):
    """The sandbox cannot be had here, or it broke; says nothing about the program."""


class Outcome(NamedTuple):
    """How one run ended.

    Attributes:
        ended: `exit` (code 0), `error` (another code), `signal`, or the limit: `wall time`, `CPU time`.
        exit_code: The exit code, or minus the signal.
        stdout: Standard output.
        stderr: The last 2,000 characters of standard error.
        value: What the called function returned, as JSON, or the token of a check that passed.
        cpu_s: Processor time in seconds.
        wall_s: Seconds from start to end.
    """

    ended: str
    exit_code: int
    stdout: str
    stderr: str
    value: str
    cpu_s: float
    wall_s: float


def run_program(
    code: str, inputs: Sequence[dict[str, Any]], limits: Limits | None = None, *, stop_at_failure: bool = False
) -> list[Outcome]:
    """Run a Python program once per input, each time in a process of its own.

    Args:
        code: The program.
        inputs: `{"stdin": text}`, or `{"function": name, "arguments": [...]}` (a function, or a method of a class
            `Solution`), or `{"check": code, "token": text}` (code that raises if the program is wrong).
        limits: Of each run.
        stop_at_failure: End after the first run that does not exit with 0.

    Returns:
        One outcome per run, in order; fewer than inputs if it stopped.

    Raises:
        SandboxError: this machine lacks what the sandbox needs, or the supervisor failed.
    """
    missing = missing_layers()
    if missing:
        raise SandboxError(f"programs cannot be run safely here: {' and '.join(missing)} is missing")
    limits = limits or Limits()
    job = {"code": code, "inputs": list(inputs), "limits": list(limits), "stop_at_failure": stop_at_failure}
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    seconds = START_SECONDS + len(job["inputs"]) * (limits.wall_s + 1)  # type: ignore[arg-type]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START],
            input=json.dumps(job).encode(),
            capture_output=True,
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"the sandbox did not end within {seconds:g} s") from error
    lines = done.stdout.decode().splitlines()
    if done.returncode or not lines:
        raise SandboxError(f"the sandbox ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    outcomes = [Outcome(**{name: record[name] for name in Outcome._fields}) for record in map(json.loads, lines)]
    if outcomes[-1].ended == "refused":
        raise SandboxError(f"the sandbox could not be closed: {outcomes[-1].stderr}")
    return outcomes
