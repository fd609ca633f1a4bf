"""What happens in a run, beside it: its events, phases of work, and what is under way now.

What lives here: the files, and reading them. They are written by the controller, whose process trains nothing; a disk
that fails costs the files and nothing else. What does not: which events are kept (`events.py`).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_engine.observe.events import EVENTS, EventLog

logger = logging.getLogger(__name__)

PHASES, STATE = "phases.jsonl", "state.json"
_KEPT = ("engines", "roles")
_LARGEST_BYTES = 32 * 2**20


class Journal:
    """Appends events to `events.jsonl` and phases to `phases.jsonl`; `state.json` is replaced.

    `phases.jsonl` keeps its last 32 to 64 MB: a full one becomes `phases.jsonl.1`, in place of the one before. What a
    state does not say of engines and roles is as it was before (`seen`): of a run that has ended one sees what it had.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._events = EventLog(run_dir / EVENTS)
        self._failing = False
        self._kept: dict[str, Any] = {}

    def event(self, event: Mapping[str, Any]) -> None:
        """Note what a role reported."""
        try:
            if event["kind"] == "phases":
                self._append_phases(event)
            else:
                self._events.write(event)
        except OSError as error:
            self._failed(error)

    def state(self, state: Mapping[str, Any]) -> None:
        """Note what is under way now."""
        if said := {name: state[name] for name in _KEPT if name in state}:
            self._kept |= {**said, "seen": time.time()}
        path = self._run_dir / STATE
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps({"time": time.time(), **self._kept, **state}))
            os.replace(temporary, path)
        except OSError as error:
            self._failed(error)

    def _append_phases(self, event: Mapping[str, Any]) -> None:
        path = self._run_dir / PHASES
        with path.open("a") as file:
            for name, step, start, end in event["phases"]:
                phase = {"role": event["role"], "name": name, "step": step, "start": start, "end": end}
                file.write(json.dumps(phase) + "\n")
            size = file.tell()
        if size > _LARGEST_BYTES:
            os.replace(path, f"{path}.1")

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            logger.warning("what happens in the run is not noted in %s: %s", self._run_dir, error)


def read_phases(run_dir: Path, *, last: int | None = None) -> list[dict[str, Any]]:
    """Phases in the order in which they were reported, the `last` ones where given; a line under way is left out."""
    phases: list[dict[str, Any]] = []
    for path in (run_dir / f"{PHASES}.1", run_dir / PHASES):
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            phases += [json.loads(line) for line in lines[-last if last else 0 :] if line.endswith("\n")]
    return phases[-last if last else 0 :]


def read_state(run_dir: Path) -> dict[str, Any]:
    """What was under way when the run last said so; empty where it never did."""
    path = run_dir / STATE
    state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return state
