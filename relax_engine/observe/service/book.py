"""What the metrics service knows, all of it on disk in the run directory, so that one that is started again knows it.

What lives here: posted metrics, and when there was no service. What does not: the run's own metrics, which
the actor writes whether there is a service or not (`relax_engine.observe.metrics`).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_engine.observe.metrics import read_metrics
from relax_engine.observe.series import RunMetrics

POSTED, SERVICE = "posted.jsonl", "metrics_service.jsonl"
_BEAT_S = 2.0


class MetricsBook:
    """Metrics of the run and posted ones, and the gaps in the latter.

    A gap is marked where the service was away (from its last sign of life to its start), and where a client says that
    it lost metrics meanwhile.
    """

    def __init__(self, run_dir: Path) -> None:
        self.metrics = RunMetrics(run_dir)
        self._posted, self._service = run_dir / POSTED, run_dir / SERVICE
        self._lock = threading.Lock()
        self._buffered: dict[int, dict[str, float]] = {}
        before = self._read_service()
        if before:
            self._note({"kind": "gap", "start": before[-1]["time"], "end": time.time(), "reason": "no service"})
        self._note({"kind": "started", "time": time.time()})
        self._beaten = time.monotonic()

    def post(self, step: int, metrics: Mapping[str, float], *, lost: int = 0) -> None:
        """Keep metrics of `step` until it is reported; `lost` says how many the client could not send before them."""
        with self._lock:
            self._buffered.setdefault(step, {}).update(metrics)
            if lost:
                now = time.time()
                self._note(
                    {"kind": "gap", "start": now, "end": now, "before_step": step, "lost": lost, "reason": "client"}
                )

    def report(self, step: int) -> int:
        """Write what was posted of `step`; returns how many metrics."""
        with self._lock:
            metrics = self._buffered.pop(step, {})
            if metrics:
                with self._posted.open("a") as file:
                    file.write(json.dumps({"step": step, **metrics}) + "\n")
            return len(metrics)

    def clear(self) -> None:
        """Forget what was posted and not reported."""
        with self._lock:
            self._buffered.clear()

    def error(self, message: str, traceback: str) -> None:
        """Note an error that somebody reports."""
        with self._lock:
            self._note({"kind": "error", "time": time.time(), "message": message, "traceback": traceback})

    def beat(self) -> None:
        """A sign of life, at most every two seconds."""
        with self._lock:
            if time.monotonic() - self._beaten >= _BEAT_S:
                self._beaten = time.monotonic()
                self._note({"kind": "alive", "time": time.time()})

    def gaps(self) -> list[dict[str, Any]]:
        """Gaps, oldest first."""
        return read_gaps(self._service.parent)

    def _note(self, record: Mapping[str, Any]) -> None:
        with self._service.open("a") as file:
            file.write(json.dumps({"step": 0, "time": record.get("end", 0.0), **record}) + "\n")

    def _read_service(self) -> list[dict[str, Any]]:
        return read_metrics(self._service) if self._service.exists() else []


def read_gaps(run_dir: Path) -> list[dict[str, Any]]:
    """Gaps in what was posted to the service of a run, oldest first; none where it had no service."""
    path = run_dir / SERVICE
    return [record for record in read_metrics(path) if record["kind"] == "gap"] if path.exists() else []


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without what JSON has no number for."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
