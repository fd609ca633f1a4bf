"""The metrics service killed while a run goes on: no step fails or waits, and the time without it is marked."""

import json
import os
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics
from relax_engine.observe.service.book import MetricsBook

STEPS = 200
"""So many that the service is back before they are done."""


@pytest.mark.long
def test_a_killed_service_costs_no_step(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:
        from ray.serve.context import _get_global_client

        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not killed:
            time.sleep(0.1)
            path = tmp_path / "metrics.jsonl"
            if not path.exists() or len(read_metrics(path)) < 3:
                continue
            client: Any = _get_global_client(raise_if_no_controller_running=False)
            url = f"http://127.0.0.1:{client.http_config.port}/metrics/health"
            with urllib.request.urlopen(url, timeout=10) as answer:
                killed.append(json.load(answer)["processes"]["service"])
            os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    result = train(tiny.config(tmp_path, num_rollout=STEPS, use_metrics_service=True))
    killer.join()
    assert killed
    assert result.new_steps == STEPS
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(STEPS))
    seconds = sorted(record["perf/step_time"] for record in records[1:])
    assert seconds[-1] < 20 * seconds[len(seconds) // 2] + 2.0
    gaps = [gap for gap in MetricsBook(tmp_path).gaps() if gap["reason"] == "no service"]
    assert len(gaps) == 2  # of the kill, and since the end of the run
    assert gaps[0]["end"] >= gaps[0]["start"]
