"""What happens to a run's parts beside its steps, as one JSON line each in `events.jsonl` of its directory.

What lives here: the file. What does not: what happens (the roles and the controller say so), and metrics.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_engine.utils.redact import redact_value

EVENTS = "events.jsonl"
"""Name of the file in `--run-dir`."""

_ELSEWHERE = ("step", "rollout", "evaluation")


class EventLog:
    """Appends events that are in no other log: engines and roles that come, go, fail and are started again, scaling."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: Mapping[str, Any]) -> None:
        """Append `event` (`kind`, `role`, and what the kind has) with `time`, in seconds since the epoch."""
        if event["kind"] in _ELSEWHERE:
            return
        with self.path.open("a") as file:
            file.write(json.dumps({"time": round(time.time(), 3), **redact_value(dict(event))}) + "\n")


def read_events(path: Path) -> list[dict[str, Any]]:
    """All complete lines, oldest first; none where nothing has happened yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
