"""From the run's own log to its trackers: a thread follows `metrics.jsonl` and `eval.jsonl`.

The log is the truth, and is written first; a tracker that is slow, broken or killed costs no training step. Every
process of a run sends the log from its beginning.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from relax_engine.observe.trackers.tracker import Tracker

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_CLOSE_S = 30.0
_LOGS = ("metrics.jsonl", "eval.jsonl")
LABELS = ("step", "version", "dataset")
"""Entries of a line that are no metrics."""


@contextlib.contextmanager
def forwarding(trackers: Sequence[Tracker], run_dir: Path) -> Iterator[None]:
    """Send what the run in `run_dir` logs to the trackers while the block runs, and the rest at its end.

    The end waits 30 seconds at most for what is left.
    """
    if not trackers:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_follow, args=(list(trackers), run_dir, done), name="trackers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_CLOSE_S)
        if thread.is_alive():
            logger.warning("the trackers did not take everything within %g s; metrics.jsonl has it", _CLOSE_S)


class LogFollower:
    """New lines of one log. Where the run went back to a checkpoint, another file with the lines up to there came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = -1
        self._offset = 0
        self._seen: list[tuple[int, int]] = []  # step and hash of every line

    def new(self) -> tuple[int | None, list[dict[str, Any]]]:
        """The step that the run went back to, if it did, and the records since the last call."""
        if not self.path.exists():
            return None, []
        with self.path.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            again = inode != self._inode
            self._inode, self._offset = inode, 0 if again else self._offset
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = complete.splitlines()
        before, self._seen = (self._seen, []) if again else ([], self._seen)
        found = [json.loads(line) for line in lines]
        read = [(record["step"], hash(line)) for record, line in zip(found, lines, strict=True)]
        same = next((n for n, (old, now) in enumerate(zip(before, read, strict=False)) if old != now), None)
        same = min(len(before), len(read)) if same is None else same
        self._seen += read
        return (before[same][0] if same < len(before) else None), found[same:]


def _follow(trackers: list[Tracker], run_dir: Path, done: threading.Event) -> None:
    followers = [LogFollower(run_dir / name) for name in _LOGS]
    while True:
        last = done.wait(_POLL_S)
        for follower in followers:
            back, records = follower.new()
            if back is not None:
                _each(trackers, lambda tracker, step=back: tracker.rewind(step))
            for record in records:
                values = {
                    name: float(value)
                    for name, value in record.items()
                    if name not in LABELS and isinstance(value, int | float)
                }
                _each(trackers, lambda tracker, step=record["step"], found=values: tracker.log(step, found))
        if last:
            _each(trackers, lambda tracker: tracker.close())
            return


def _each(trackers: list[Tracker], call: Any) -> None:
    """Call every tracker; one that fails is told of once, and gets no more."""
    for tracker in list(trackers):
        try:
            call(tracker)
        except Exception as error:  # noqa: BLE001 - whatever a tracker does, the run goes on
            trackers.remove(tracker)
            logger.warning("%s takes no more metrics: %s", type(tracker).__name__, error)
