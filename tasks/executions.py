"""The log of tasks that really ran: a cached task leaves no line in it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "RELAX_EXECUTION_LOG"


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a task's body: when it began (seconds since the epoch), how long it took, how it ended."""

    task: str
    started: float
    seconds: float
    outcome: str


@contextlib.contextmanager
def executed(task: str) -> Iterator[None]:
    """Append one line about the block to the file that `$RELAX_EXECUTION_LOG` names, if it names one."""
    started = time.time()
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        path = os.environ.get(VARIABLE)
        if path:
            line = json.dumps(asdict(Execution(task, started, round(time.time() - started, 3), outcome)))
            with open(path, "a", encoding="utf-8") as log:
                log.write(line + "\n")


def read_executions(path: Path) -> list[Execution]:
    """The executions in a log, oldest first; none if there is no file."""
    if not path.exists():
        return []
    return [Execution(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
