"""Silence and standstill: when they are noticed, and what is said about them."""

import time
from pathlib import Path
from typing import Any, cast

import pytest

from relax_engine.core import watch as watch_module
from relax_engine.core.failure import RoleError
from relax_engine.core.watch import Watch


class Service:
    """A role as the watch sees it."""

    def __init__(self, *, idle: float = 0.0, silent: bool = False) -> None:
        self.idle, self.silent = idle, silent
        self.report: list[dict[str, Any]] = []

    async def events(self, deadline_s: float) -> list[dict[str, Any]]:
        if self.silent:
            raise RoleError("did not answer drain_events()", interrupted=True)
        events, self.report = self.report, []
        return events

    async def call(self, method: str, *, deadline_s: float) -> dict[str, Any]:
        assert method == "inspect"
        if self.silent:
            raise RoleError("role 'reference' did not answer inspect() within 20 s", interrupted=True)
        return {
            "step": 3,
            "seconds_since_progress": self.idle,
            "waiting": [{"for": "take(actor_train, train_3, 0)", "seconds": self.idle}],
            "stacks": {"thread MainThread": '  File "actor.py", line 1, in _take\n'},
        }


class Stream:
    def describe(self, *, deadline_s: float) -> str:
        return "admitted groups still missing: group 7 for 99.0 s on http://e"


def watch_of(services: dict[str, Service], run_dir: Path, timeout: float = 30.0) -> Watch:
    return Watch(cast(Any, services), cast(Any, Stream()), run_dir, timeout)


async def test_a_role_is_silent_when_it_has_not_answered_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = {"actor": Service(), "reference": Service(silent=True)}
    watch = watch_of(services, tmp_path)
    await watch.events(["actor", "reference"])
    assert watch.silent() == {}
    now = time.monotonic()
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: now + 121)
    await watch.events(["actor"])
    assert list(watch.silent()) == ["reference"]
    assert "has not answered for 121 s" in str(watch.silent()["reference"])
    watch.forget("reference")
    assert watch.silent() == {}


async def test_a_standstill_is_an_error_that_says_who_waits_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = {"actor": Service(idle=61.2), "reference": Service(silent=True)}
    watch = watch_of(services, tmp_path)
    await watch.require_progress()
    now = time.monotonic()
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: now + 31)
    with pytest.raises(RoleError) as raised:
        await watch.require_progress()
    message = str(raised.value)
    assert "no role has made progress for 30 s" in message
    assert "actor: step 3, no progress for 61.2 s, waits for take(actor_train, train_3, 0) for 61.2 s" in message
    assert "reference: role 'reference' did not answer inspect()" in message
    dump = (tmp_path / "standstill.txt").read_text()
    assert "group 7 for 99.0 s on http://e" in dump
    assert "line 1, in _take" in dump


async def test_work_that_only_the_role_knows_of_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_of({"actor": Service(idle=5.0), "rollout": Service(idle=100.0)}, tmp_path)
    now = time.monotonic()
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: now + 31)
    await watch.require_progress()
    assert not (tmp_path / "standstill.txt").exists()
