"""Runs that must fail: with the right name, in bounded time, leaving nothing behind."""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import core_rewards
import psutil
import pytest

from relax_engine.core.failure import RoleError
from relax_engine.core.train import train


def processes(pattern: str) -> list[psutil.Process]:
    """Running processes below this one, Ray's among them, whose command line matches."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if re.search(pattern, " ".join(process.cmdline())):
                found.append(process)
    return found


def wait_until(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def ranks() -> list[psutil.Process]:
    return processes(r"^ray::TrainRank")


def engines(tiny: Any) -> list[psutil.Process]:
    """Engines of this session's model only."""
    return processes(rf"engines\.local.*--model-path {re.escape(str(tiny.model))} ")


def assert_gone(tiny: Any, run_dir: Path) -> None:
    """Nothing was saved, and no process is left."""
    assert not list(run_dir.glob("ckpt/iter_*"))
    wait_until(lambda: not engines(tiny) and not ranks(), 20)


@pytest.fixture
def fails(ray_cluster: None, tiny: Any, tmp_path: Path) -> Callable[..., str]:
    """Run with changes; returns the message of the failure."""

    def run(**changes: Any) -> str:
        config = tiny.config(tmp_path, save=str(tmp_path / "ckpt"), **changes)
        with pytest.raises(RoleError) as raised:
            train(config)
        assert_gone(tiny, tmp_path)
        return str(raised.value)

    return run


def test_a_reward_that_raises(fails: Callable[..., str], tmp_path: Path) -> None:
    message = fails(custom_rm_path=f"{core_rewards.HERE}:raises_on_seven")
    assert "role 'rollout' failed: reward" in message
    assert "core_rewards.py:raises_on_seven' failed on sample 7 of group 1" in message
    assert "KeyError: 'no such answer'" in message
    assert "raises_on_seven" in (tmp_path / "errors.log").read_text()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_reward_that_never_returns(fails: Callable[..., str]) -> None:
    started = time.monotonic()
    message = fails(custom_rm_path=f"{core_rewards.HERE}:never_returns_on_five", reward_timeout=1.0)
    assert "core_rewards.py:never_returns_on_five' failed on sample 5 of group 1" in message
    assert re.search(r"1(\.0)? s|deadline|timeout", message)
    assert time.monotonic() - started < 120  # most of it is the start of the roles


def test_a_run_that_stands_still_says_who_waits_for_what(fails: Callable[..., str], tmp_path: Path) -> None:
    started = time.monotonic()
    message = fails(custom_rm_path=f"{core_rewards.HERE}:never_returns_on_five", progress_timeout=5.0)
    assert "no role has made progress for 5 s" in message
    assert re.search(r"actor: step 0, no progress for [\d.]+ s, waits for take\(actor_train, train_0, 0\) for", message)
    dump = (tmp_path / "standstill.txt").read_text()
    assert re.search(r"group 1 for [\d.]+ s on http://", dump)
    assert "in score" in dump  # the rollout's task that waits for the reward
    assert "-- rank 0 thread" in dump
    assert time.monotonic() - started < 120  # most of it is the start of the roles


def kill_when_training(victim: Callable[[], list[psutil.Process]], run_dir: Path) -> threading.Thread:
    """Kill the first process that `victim` finds once a step was done."""

    def work() -> None:
        metrics = run_dir / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text(), 120)
        victim()[0].kill()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_training_rank_that_dies(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    killer = kill_when_training(ranks, tmp_path)
    with pytest.raises(RoleError, match=r"role 'actor' failed: actor: the process of rank 0 died: "):
        train(tiny.config(tmp_path, num_rollout=500))
    killer.join()
    assert_gone(tiny, tmp_path)


def test_an_engine_that_dies(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    """Whoever needs the engine next says so: the rollout, or the weight sync."""
    killer = kill_when_training(lambda: engines(tiny), tmp_path)
    with pytest.raises(RoleError, match=r"role '(rollout|actor)' failed: .*http://[\d.]+:\d+"):
        train(tiny.config(tmp_path, num_rollout=500))
    killer.join()
    assert_gone(tiny, tmp_path)
