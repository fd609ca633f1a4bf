"""Notifications through Apprise's own `json://`, received by a real HTTP server."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from relax_engine.config import ConfigError, RunConfig
from relax_engine.observe.notify import Notifier, notified, parse_target


class Inbox:
    """What arrived, in order: (path, title, body, type). Answers `status` after `delay` seconds."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, str, str]] = []
        self.status, self.delay = 200, 0.0
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                time.sleep(inbox.delay)
                data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                inbox.messages.append((self.path, data["title"], data["message"], data["type"]))
                self.send_response(inbox.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def url(self, path: str, query: str = "") -> str:
        return f"json://user:hunter2@127.0.0.1:{self.server.server_port}/{path}{query}"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.server.shutdown()
    inbox.server.server_close()


def test_a_run_from_start_to_end(inbox: Inbox) -> None:
    with notified([inbox.url("a")], "math", {"project": "tiny", "steps": "0..2"}) as notifier:
        notifier.event({"kind": "step", "step": 0, "metrics": {"train/loss": 0.5, "rollout/raw_reward": 0.25, "x": 1}})
        notifier.event({"kind": "step", "step": 1, "metrics": {"train/loss": 0.375, "rollout/raw_reward": 0.75}})
        notifier.event({"kind": "rollout", "rollout_id": 1})
        notifier.event(
            {"kind": "engine_quarantined", "engine": "http://h:1", "reason": "Bearer abcdefghijkl was wrong"}
        )
        notifier.event({"kind": "engine_started", "engine": "http://h:2", "replaces": None})
        notifier.event({"kind": "engine_started", "engine": "http://h:2", "replaces": "http://h:1"})
        notifier.event({"kind": "role_restarted", "role": "actor", "reason": "rank 0 died"})
        notifier.event({"kind": "run_restarted", "role": "controller", "step": 4, "reason": "no checkpoint of it"})
        notifier.finished({"train/loss": 0.375}, {"steps": 2})
    assert [message[1:] for message in inbox.messages] == [
        ("math: started", "project: tiny\nsteps: 0..2", "info"),
        ("math: step 0", "rollout/raw_reward: 0.25\ntrain/loss: 0.5", "info"),
        ("math: step 1", "rollout/raw_reward: 0.75 (+0.5)\ntrain/loss: 0.375 (-0.125)", "info"),
        ("math: engine out of service", "http://h:1: Bearer *** was wrong", "warning"),
        ("math: engine started again", "http://h:2 in the place of http://h:1", "info"),
        ("math: role actor started again", "rank 0 died", "warning"),
        ("math: run started again at step 4", "no checkpoint of it", "warning"),
        ("math: finished", "steps: 2\ntrain/loss: 0.375", "success"),
    ]


def test_a_watched_metric_that_gets_worse(inbox: Inbox) -> None:
    with Notifier([inbox.url("a", "?freq=1000")], "math", ["rollout/raw_reward"]) as notifier:
        for step in range(30):
            metrics = {"rollout/raw_reward": 0.75 if step < 20 else 0.25}
            notifier.event({"kind": "step", "step": step, "metrics": metrics})
    (told,) = [message for message in inbox.messages if "worse" in message[1]]
    assert told[1] == "math: rollout/raw_reward has become worse"
    assert told[2].endswith("at best 0.75")
    assert told[3] == "warning"


def test_every_nth_report_and_all_other_messages(inbox: Inbox) -> None:
    with Notifier([inbox.url("all"), inbox.url("third", "?freq=3")], "math") as notifier:
        notifier.started({})
        for step in range(7):
            notifier.report(step, {"train/loss": float(step)})
        notifier.alert("look", "here", "failure")
    got = [title.removeprefix("math: ") for path, title, *_ in inbox.messages if path == "/third"]
    assert got == ["started", "step 0", "step 3", "step 6", "look"]
    assert sum(path == "/all" for path, *_ in inbox.messages) == 9


def test_errors_and_early_ends(inbox: Inbox) -> None:
    secret = "hunter" + "2"
    with pytest.raises(OSError, match="bucket"), notified([inbox.url("a")], "math", {}):
        raise OSError(f"cannot read s3://user:{secret}@bucket")
    with pytest.raises(SystemExit), notified([inbox.url("a")], "math", {}):
        raise SystemExit(143)
    (_, title, body, level), (_, ended, why, _) = (inbox.messages[1], inbox.messages[3])
    assert (title, level) == ("math: failed: OSError", "failure")
    assert "Traceback (most recent call last)" in body
    assert "OSError: cannot read s3://***@bucket" in body
    assert secret not in body
    assert (ended, why) == ("math: ended before its end", "SystemExit 143")


@pytest.mark.parametrize("status", [401, 500])
def test_a_service_that_refuses_harms_nobody_and_its_url_is_not_shown(
    inbox: Inbox, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    inbox.status = status
    with caplog.at_level(logging.DEBUG), Notifier([inbox.url("a")], "math") as notifier:
        for step in range(3):
            notifier.report(step, {"train/loss": 1.0})
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [
        "notification to json://*** failed: the service did not take the message; further failures are not logged"
    ]
    assert "hunter2" not in caplog.text


def test_a_slow_service_delays_no_step_and_memory_is_bounded(inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    inbox.delay = 0.3
    notifier = Notifier([inbox.url("a")], "math")
    started = time.perf_counter()
    for step in range(2000):
        notifier.report(step, {"train/loss": 1.0})
    assert time.perf_counter() - started < 1.0
    assert notifier.dropped >= 2000 - 64 - 5
    notifier.close(deadline_s=0.1)
    assert "were not sent" in caplog.text


def test_off_by_default() -> None:
    assert RunConfig().flat.notify_urls == []
    before = threading.active_count()
    with notified([], "math", {}) as notifier:
        notifier.report(0, {"train/loss": 1.0})
        assert threading.active_count() == before


def test_urls_are_split_where_a_new_one_begins_and_never_shown() -> None:
    config = RunConfig.from_flat(notify_urls="mailto://me:pw@x.org?to=a@x.org,b@x.org, json://h/p?freq=2,slack://a/b/c")
    assert config.flat.notify_urls == ["mailto://me:pw@x.org?to=a@x.org,b@x.org", "json://h/p?freq=2", "slack://a/b/c"]
    assert "notify_urls:\n  - '***'" in config.to_yaml()
    assert "pw@x.org" not in config.to_yaml()


def test_frequency_is_ours_and_other_parameters_are_the_services() -> None:
    target = parse_target("json://h/p?freq=5&method=put&+X-Key=abc")
    assert (target.freq, target.shown) == (5, "json://***")
    shown = target.service.url()
    assert "method=PUT" in shown
    assert "X-Key=abc" in shown
    assert "freq" not in shown


@pytest.mark.parametrize("url", ["nonsense://secret", "slack://secret", "json://h?freq=-1", "json://h?freq=x"])
def test_what_apprise_does_not_know(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--notify-urls (nonsense|slack|json)://\*\*\*: ") as error:
        parse_target(url)
    assert "secret" not in str(error.value)
