"""The metrics service over HTTP, its client, and what a service that dies costs."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import SecretStr

from relax_engine.access.policy import AccessPolicy, install
from relax_engine.observe.client import MetricsClient
from relax_engine.observe.metrics import MetricsLog
from relax_engine.observe.service.api import metrics_api
from relax_engine.observe.service.book import MetricsBook

TOKEN = SecretStr("right")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def serving(run: Path, port: int) -> Iterator[str]:
    install(AccessPolicy(TOKEN, None, 10_000))
    book = MetricsBook(run)
    server = uvicorn.Server(uvicorn.Config(metrics_api(lambda: book), "127.0.0.1", port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = server.force_exit = True
    thread.join(20)


def ask(url: str, body: Any = None, token: str = "right") -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_posted_metrics_come_with_the_runs_own(tmp_path: Path, port: int) -> None:
    MetricsLog(tmp_path / "metrics.jsonl").write(3, {"train/loss": 0.5})
    with serving(tmp_path, port) as url:
        ask(f"{url}/log_metric", {"step": 3, "metric_name": "mine/a", "metric_value": 1.5})
        ask(f"{url}/log_metrics_batch", {"step": 3, "metrics": {"mine/b": 2.5}, "tags": {}})
        assert ask(f"{url}/query_metrics?metric=mine/*")["series"] == {}
        assert ask(f"{url}/report_step", {"step": 3})["metrics"] == 2
        series = ask(f"{url}/query_metrics?metric=mine/*&metric=train/loss&start=3&end=3")["series"]
        assert series["mine/a"] == {"steps": [3], "values": [1.5]}
        assert series["train/loss"] == {"steps": [3], "values": [0.5]}
        assert "relax_mine_b 2.5" in ask(f"{url}/")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{url}/query_metrics", token="wrong")
        assert ask(f"{url}/health", token="wrong")["status"] == "ok"


def test_a_service_that_is_away_loses_nothing_and_marks_the_gap(tmp_path: Path, port: int) -> None:
    """Logging takes no time while it is away; what waits arrives afterwards, and the time without it is marked."""
    with serving(tmp_path, port) as url:
        client = MetricsClient(url, TOKEN)
        client.log(0, {"mine": 0.0})
        client.report_step(0)
        wait_until(lambda: ask(f"{url}/query_metrics?metric=mine")["series"])
    started = time.monotonic()
    for step in range(1, 4):
        client.log(step, {"mine": float(step)})
        client.report_step(step)
    assert time.monotonic() - started < 0.1
    with serving(tmp_path, port) as url:
        wait_until(lambda: ask(f"{url}/query_metrics?metric=mine")["series"]["mine"]["steps"] == [0, 1, 2, 3])
        (gap,) = ask(f"{url}/query_metrics")["gaps"]
        assert gap["reason"] == "no service"
        assert gap["end"] > gap["start"] > 0
    client.close()
    assert client.lost == 0


def test_what_does_not_fit_is_lost_counted_and_told(tmp_path: Path, port: int) -> None:
    client = MetricsClient(f"http://127.0.0.1:{port}", TOKEN)
    for step in range(1100):
        client.log(step, {"mine": 1.0, "other": 2.0})
    assert 2 * 99 <= client.lost <= 2 * 100
    with serving(tmp_path, port) as url:
        wait_until(lambda: any(gap.get("lost") for gap in ask(f"{url}/query_metrics")["gaps"]))
        (gap,) = ask(f"{url}/query_metrics")["gaps"]
        assert gap["lost"] == client.lost
    client.close(0.1)
