"""A fully async run whose autoscaler only recommends: what it sees of real engines, and that it ends with the run."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train

pytestmark = pytest.mark.long


def test_the_autoscaler_watches_a_run(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    from ray import serve
    from ray.serve.context import _get_global_client

    rules = tmp_path / "autoscaler.yaml"
    rules.write_text(
        "recommend_only: true\ncollect_interval: 0.2\ndecide_interval: 0.4\n"
        "scale_out: {token_usage: 0.001, token_usage_duration: 0}\n"
        "scale_in: {token_usage: 0, projected_usage: 0.0005}\n"
    )
    config = tiny.config(
        tmp_path / "run",
        fully_async=True,
        resource={"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]},
        max_staleness=1,
        num_rollout=4,
        autoscaler_config=str(rules),
    )
    seen: dict[str, Any] = {}
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
                    if path != "conditions" or found["conditions"]:
                        seen[path] = found
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
    assert seen["health"] == {"status": "ok"}
    assert (seen["status"]["engines"], seen["status"]["recommend_only"], seen["status"]["error"]) == (1, True, None)
    assert len(seen["conditions"]["conditions"]) == 9
    assert {entry["outcome"] for entry in seen["scale_history"]["history"]} == {"recommended"}
    assert seen["scale_history"]["history"][0]["action"] == "scale_out"
    assert "autoscaler" not in serve.status().applications
