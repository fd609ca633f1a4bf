"""`pyflyte run` that kills itself with SIGKILL, at the first of its points at which it has not died before.

It is forked from a process that has imported all that the tasks use, so that an attempt takes the time of its tasks.

Points of a task, in the order of the program: `training` (a checkpoint is complete, steps are to come), `committing`
(everything of an artifact is stored, its reference is not), `shown` (a file was written that is no artifact), `done`
(the body has ended, Flyte does not know it),
`cached` (Flyte has kept the result: the boundary between this task and the next). A point is told from others of its
kind by the task and its inputs, so it is the same one in every attempt. The file `points` has those that have been died
at, `bodies` the bodies that were begun.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import great_expectations  # noqa: F401
import ray  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401
from flytekit.clis.sdk_in_container.pyflyte import main
from flytekit.core import local_cache

import relax_engine
from relax_engine.lineage.refs import ReferenceTable
from tasks import decks, executions
from tasks.store import work_root

points, bodies = Path("points.txt"), Path("bodies.txt")
dies = True
current = "none"


def append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def reach(kind: str, what: str = "") -> None:
    """Die here, unless that has been done."""
    if not dies:
        return
    point = f"{current} {kind} {what}".strip()
    if point not in (points.read_text().splitlines() if points.exists() else ()):
        append(points, point)
        os.kill(os.getpid(), signal.SIGKILL)


original_get, original_set = local_cache.LocalTaskCache.get, local_cache.LocalTaskCache.set
original_executed, original_update, original_show = executions.executed, ReferenceTable.update, decks.show


def get(task_name: str, version: str, inputs: Any, ignored: Any) -> Any:
    global current
    key = local_cache._calculate_cache_key(task_name, version, inputs, ignored)
    current = f"{task_name.rpartition('.')[2]}:{key[-8:]}"
    return original_get(task_name, version, inputs, ignored)


def keep(*arguments: Any, **named: Any) -> None:
    original_set(*arguments, **named)
    reach("cached")


@contextlib.contextmanager
def executed(task: str) -> Iterator[None]:
    append(bodies, current)
    if task == "train":
        threading.Thread(target=watch, daemon=True).start()
    with original_executed(task):
        yield
    reach("done")


def show(title: str, *parts: str) -> str:
    if current.startswith("convert_dataset"):
        reach("shown")
    return original_show(title, *parts)


def watch() -> None:
    while not [p for p in work_root().glob("train-*/checkpoints/iter_*") if re.fullmatch(r"iter_\d+", p.name)]:
        time.sleep(0.05)
    reach("training")


def update(self: ReferenceTable, name: str, change: Any) -> Any:
    reach("committing", name)
    return original_update(self, name, change)


def attempt(home: Path, variables: dict[str, str], arguments: list[str], killed: bool) -> None:
    """The program `pyflyte` with these arguments, in a process that was just forked."""
    global points, bodies, dies
    dies = killed
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(home)
    points, bodies = home / "points.txt", home / "bodies.txt"
    log = os.open(home / "out.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    main(args=arguments, prog_name="pyflyte")


local_cache.LocalTaskCache.get = staticmethod(get)
local_cache.LocalTaskCache.set = staticmethod(keep)
executions.executed, decks.show = executed, show
ReferenceTable.update = update  # type: ignore[method-assign]
importlib.import_module("workflows.post_training")
for public in relax_engine.__all__:
    getattr(relax_engine, public)
