"""Runs with an autoscaler: one of their own, which only recommends, and `relax autoscaler run` beside one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from chaos import ChaosRun
from scaled import Scaled

from relax_engine.core.train import train

pytestmark = pytest.mark.long


def test_the_autoscaler_watches_a_run(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    from ray import serve
    from ray.serve.context import _get_global_client

    rules = tmp_path / "autoscaler.yaml"
    rules.write_text("recommend_only: true\nmin_engines: 2\ncollect_interval: 0.2\ndecide_interval: 0.4\n")
    config = tiny.config(
        tmp_path / "run",
        fully_async=True,
        resource={"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]},
        max_staleness=1,
        num_rollout=4,
        autoscaler_config=str(rules),
    )
    seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            client = _get_global_client(raise_if_no_controller_running=False)
            for path in ("status", "conditions", "scale_history", "health") if client else ():
                try:
                    token = (tmp_path / "run" / "api_token").read_text().strip()
                    url = f"http://127.0.0.1:{client.http_config.port}/autoscaler/{path}"
                    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
                    with urllib.request.urlopen(request, timeout=5) as answer:
                        found = json.load(answer)
                    seen[path].append(found)
                except (OSError, urllib.error.URLError):
                    continue
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        train(config)
    finally:
        done.set()
        watcher.join()
    assert {"status": "ok"} in seen["health"]
    # Before the rollout is there, and when it has gone, the autoscaler says so.
    assert any((status["engines"], status["error"]) == (1, None) for status in seen["status"])
    assert {len(found["conditions"]) for found in seen["conditions"]} <= {0, 9}
    history = seen["scale_history"][-1]["history"]
    assert {(entry["target"], entry["outcome"]) for entry in history} == {(2, "recommended")}
    assert "autoscaler" not in serve.status().applications


def test_a_run_is_scaled_from_outside(tiny: Any, tmp_path: Path) -> None:
    """The command adds an engine, because the rules want two, and its end is not the engine's."""
    rules = tmp_path / "autoscaler.yaml"
    rules.write_text("min_engines: 2\nmax_engines: 2\ncollect_interval: 0.5\ndecide_interval: 1.0\n")
    flags = {"hybrid": True, "max_staleness": 1, "num_rollout": 60, "save": str(tmp_path / "ckpt")}
    run = ChaosRun(tiny, tmp_path / "run", flags)
    scaled = Scaled(run)
    try:
        run.start()
        assert run.wait_for_step(1, 180), run.report()
        relax = Path(sys.executable).parent / "relax"
        where = ["--rollout-url", f"{run.address()}/rollout", "--run-dir", run.run_dir, "--config", rules]
        autoscaler = subprocess.Popen([relax, "autoscaler", "run", *where])
        try:
            scaled.serve(2)
        finally:
            autoscaler.terminate()
            autoscaler.wait(30)
        assert [request["status"] for request in scaled.ask("/scale_out")["requests"]] == ["ACTIVE"]
        assert scaled.added()["status"] == "active"
        run.finish(240)
        run.audit(60, 16)
    finally:
        run.stop()
