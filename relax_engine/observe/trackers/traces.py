"""Spans of every step to an OpenTelemetry collector, while the run goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from relax_engine.observe.otlp import SpanSender
from relax_engine.observe.rollouts.filters import QueryError

_RECORDED_S = 6.0
"""By then everything about a step that has ended is on disk."""


class Traces:
    """Follows the steps as other trackers follow their metrics."""

    def __init__(self, endpoint: str, run_dir: Path) -> None:
        self._sender = SpanSender(endpoint, run_dir)
        self._waiting: deque[tuple[int, float]] = deque()
        self._last = -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._last:  # evaluations come between
            self._last = step
            self._waiting.append((step, time.monotonic()))
        while self._waiting and time.monotonic() - self._waiting[0][1] > _RECORDED_S:
            self._send(self._waiting.popleft()[0])

    def rewind(self, step: int) -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0] < step)
        self._last = step - 1

    def close(self) -> None:
        for step, _ in self._waiting:
            self._send(step)
        self._sender.close()

    def _send(self, step: int) -> None:
        try:
            self._sender.send(step)
        except QueryError:
            return  # a step without phases, and whose samples were all too old
