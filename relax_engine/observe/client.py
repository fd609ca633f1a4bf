"""Posting metrics of one's own to the metrics service, from hooks and rewards: without waiting, without failing."""

from __future__ import annotations

import json
import logging
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping

from pydantic import SecretStr

logger = logging.getLogger(__name__)

_WAITING = 1000
_TIMEOUT_S = 5.0
_AGAIN_S = 1.0
_CLOSE_S = 5.0


class MetricsClient:
    """`log` and `report_step` return at once; a thread sends, in order, and again after a second where that fails.

    At most 1,000 calls wait. Beyond that the oldest are lost; how many is said to the service with the next that
    arrives, which marks the gap.
    """

    def __init__(self, url: str, token: SecretStr | None = None) -> None:
        """`url` is that of the service, as in `http://127.0.0.1:8000/metrics`."""
        self.lost = 0
        """Metrics that were given up, since the start."""
        self._url, self._token = url.rstrip("/"), token
        self._calls: deque[tuple[str, dict[str, object]]] = deque()
        self._untold = 0
        self._changed = threading.Condition()
        self._closed = False
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="metrics client", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Have metrics of `step` kept."""
        values = {name: float(value) for name, value in metrics.items()}
        self._put("log_metrics_batch", {"step": step, "metrics": values})

    def report_step(self, step: int) -> None:
        """Everything of `step` was logged."""
        self._put("report_step", {"step": step})

    def close(self, deadline_s: float = _CLOSE_S) -> None:
        """Send what waits, for at most `deadline_s` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(deadline_s)

    def _put(self, path: str, body: dict[str, object]) -> None:
        with self._changed:
            if len(self._calls) >= _WAITING:
                _, oldest = self._calls.popleft()
                metrics = oldest.get("metrics")
                count = len(metrics) if isinstance(metrics, dict) else 0
                self.lost += count
                self._untold += count
            self._calls.append((path, body))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._closed)
                if not self._calls:
                    return
                path, body = self._calls.popleft()
                told = self._untold if path == "log_metrics_batch" else 0
            if self._send(path, {**body, "lost": told} if told else body):
                self._untold -= told
                continue
            with self._changed:
                if self._closed:
                    return
                self._calls.appendleft((path, body))
                self._changed.wait_for(lambda: self._closed, _AGAIN_S)

    def _send(self, path: str, body: Mapping[str, object]) -> bool:
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token.get_secret_value()}"
        request = urllib.request.Request(f"{self._url}/{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                self._failing = False
                return True
        except (urllib.error.URLError, OSError) as error:
            if not self._failing:
                self._failing = True
                logger.warning("the metrics service does not take metrics: %s; they wait", error)
            return False
