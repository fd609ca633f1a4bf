"""Engines come, go, die and are taken away during a run: every row is trained once, and the policy learns the same."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import core_rewards
import pytest
from chaos import ChaosRun

from relax_engine.access.token_file import read_token
from relax_engine.backends.engines.launch import launch_engine
from relax_engine.observe.metrics import read_metrics

STEPS, ROWS, LAST = 250, 16, 20
FLAGS: dict[str, Any] = {
    "hybrid": True,
    "max_staleness": 1,
    "partial_rollout": True,
    "num_rollout": STEPS,
    "custom_rm_path": f"{core_rewards.HERE}:even",
    "weight_sync_transport": "object_store",
    "scale_in_drain_timeout": 2.0,
    "save_interval": 100,
}
WAIT_S = 120.0


class Scaled:
    """A run, and its scaling API."""

    def __init__(self, run: ChaosRun) -> None:
        self.run = run

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        token = read_token(self.run.run_dir).get_secret_value()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.run.address()}/rollout{path}", data, headers)
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


@pytest.fixture
def start(tiny: Any, tmp_path: Path) -> Iterator[Callable[[str], ChaosRun]]:
    runs = []

    def start(name: str) -> ChaosRun:
        root = tmp_path / name
        root.mkdir()
        store = {"save": str(root / "ckpt"), "weight_sync_url": str(root / "weights")}
        runs.append(ChaosRun(tiny, root / "run", FLAGS | store))
        runs[-1].start()
        return runs[-1]

    yield start
    for run in runs:
        run.stop()


def final_reward(run: ChaosRun) -> float:
    return mean(record["rollout/raw_reward"] for record in read_metrics(run.run_dir / "metrics.jsonl")[-LAST:])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_one_to_four_to_two_to_five_to_one(tiny: Any, start: Callable[[str], ChaosRun]) -> None:
    run = start("elastic")
    assert run.wait_for_step(2, 180)
    scaled = Scaled(run)
    scaled.serve(1)
    scaled.scale("scale_out", "ACTIVE", num_replicas=4)
    scaled.serve(4)
    os.kill(scaled.added()["pid"], signal.SIGKILL)  # it is started again in its place
    scaled.until(lambda: len({e["status"] for e in scaled.engines()}) > 1, "the death is noticed")
    scaled.serve(4)
    scaled.scale("scale_in", "COMPLETED", num_replicas=2)
    scaled.serve(2)
    with launch_engine(tiny.model) as external:
        scaled.scale("scale_out", "ACTIVE", num_replicas=4)
        scaled.scale("scale_out", "ACTIVE", engine_urls=[external.url])
        scaled.serve(5)
        os.kill(scaled.engines()[0]["pid"], signal.SIGKILL)  # the initial one
        scaled.until(lambda: len({e["status"] for e in scaled.engines()}) > 1, "the death is noticed")
        scaled.serve(5)
    scaled.serve(4)  # the external engine is gone, and nobody starts it again
    os.kill(scaled.added()["pid"], signal.SIGTERM)  # its machine is taken away
    scaled.serve(3)
    evictions = [request for request in scaled.ask("/scale_in")["requests"] if request["evicted"]]
    assert [request["status"] for request in evictions] == ["COMPLETED"]
    scaled.scale("scale_in", "COMPLETED", num_replicas=1, force=True)
    scaled.serve(1)
    run.finish(300)
    run.audit(STEPS, ROWS)
    undisturbed = start("undisturbed")
    undisturbed.finish(300)
    undisturbed.audit(STEPS, ROWS)
    rewards = final_reward(run), final_reward(undisturbed)
    assert abs(rewards[0] - rewards[1]) < 0.05, rewards
    assert min(rewards) > 0.8, rewards
