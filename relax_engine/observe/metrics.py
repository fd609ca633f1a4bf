"""The run's metrics as one JSON line per step beside the run; what plots and reports read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MetricsLog:
    """Append-only `metrics.jsonl` with one line per step (`eval.jsonl`: per step and data set).

    A run that resumes at `start_step` first removes the lines of later steps and, if a crash came
    between the checkpoint of the step before and its line, adds that line from `last`, the metrics
    that the checkpoint holds. So each step is in the file once, as it finally happened.
    """

    def __init__(self, path: Path, *, start_step: int = 0, last: Mapping[str, float] | None = None) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [record for record in read_metrics(path) if record["step"] < start_step] if path.exists() else []
        if last and all(record["step"] != start_step - 1 for record in kept):
            kept.append({"step": start_step - 1, **last})
        if kept or path.exists():
            temporary = path.with_suffix(".tmp")
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
            os.replace(temporary, path)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of `step`; they are on disk when this returns."""
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a last line cut off by a crash is left out."""
    records = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            records.append(json.loads(line))
    return records
