"""A run, and its scaling API as a caller sees it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from chaos import ChaosRun

from relax_engine.access.token_file import read_token

WAIT_S = 120.0


class Scaled:
    """A run, and the scaling API of one of its roles."""

    def __init__(self, run: ChaosRun, role: str = "rollout") -> None:
        self.run, self.role = run, role

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        token = read_token(self.run.run_dir).get_secret_value()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.run.address()}/{self.role}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def engines(self) -> list[dict[str, Any]]:
        groups = self.ask("/engines")["models"]["default"]["engine_groups"]
        return [engine for group in groups for engine in group["engines"]]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + WAIT_S
        while not (value := condition()):
            assert self.run.process.poll() is None, f"the run ended before {what}; {self.run.report()}"
            assert time.monotonic() < deadline, f"{what} not within {WAIT_S} s; {self.engines()} {self.run.report()}"
            time.sleep(0.1)
        return value

    def serve(self, count: int) -> None:
        """Wait until so many engines serve, and for a step of theirs."""
        self.until(lambda: [e["status"] for e in self.engines()] == ["active"] * count, f"{count} engines serve")
        step = self.run.steps()
        self.until(lambda: self.run.steps() > step, "another step")

    def scale(self, kind: str, end: str, **body: Any) -> None:
        request_id = self.ask(f"/{kind}", body)["request_id"]
        state = self.until(
            lambda: (found := self.ask(f"/{kind}/{request_id}"))["status"] in (end, "FAILED", "PARTIAL") and found,
            f"{kind} {body} has ended",
        )
        assert state["status"] == end, state

    def added(self) -> dict[str, Any]:
        return next(engine for engine in self.engines() if engine["origin"] == "ray_native")
