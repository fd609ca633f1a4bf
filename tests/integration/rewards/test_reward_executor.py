"""The executor with real worker processes: scores, deadlines, failures, speed and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import reward_hooks

from relax_engine.rewards import RewardError, RewardExecutor, RewardSettings, register_reward
from relax_engine.types import Sample

HERE = Path(__file__).parent


def samples(count: int, **fields: Any) -> list[Sample]:
    return [Sample(index=index, group_index=index // 4, **fields) for index in range(count)]


def custom(name: str, **settings: Any) -> RewardExecutor:
    return RewardExecutor(RewardSettings(custom_rm_path=f"reward_hooks.{name}", **settings), {"scale": 2.0})


def gone_within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


async def test_sync_functions_get_args_and_sample() -> None:
    batch = samples(6, response="abc")
    with custom("scaled", reward_key="score") as executor:
        await executor.score(batch)
    assert [sample.reward for sample in batch] == [{"score": 6.0, "note": "abc"}] * 6
    assert batch[0].get_reward_value("score") == 6.0


async def test_function_of_the_sample_alone_scores_the_right_sample() -> None:
    batch = samples(300)
    with custom("index_alone") as executor:
        await executor.score(batch)
    assert [sample.reward for sample in batch] == [float(index) for index in range(300)]


async def test_function_in_a_file() -> None:
    batch = samples(2)
    with RewardExecutor(RewardSettings(custom_rm_path=f"{HERE / 'reward_hooks.py'}:half"), None) as executor:
        await executor.score(batch)
    assert [sample.reward for sample in batch] == [0.5, 0.5]


async def test_metadata_chooses_among_registered_rewards() -> None:
    register_reward("executor_test_half", reward_hooks.half)
    register_reward("executor_test_async", reward_hooks.counted)
    batch = samples(4, response="\\boxed{7}", label="7")
    batch[1].metadata["rm_type"] = "executor_test_half"
    batch[2].metadata["rm_type"] = "executor_test_async"
    batch[3].label = "8"
    with RewardExecutor(RewardSettings(rm_type="math"), None) as executor:
        await executor.score(batch)
    assert [sample.reward for sample in batch] == [1.0, 0.5, 0.25, 0.0]


async def test_no_reward_configured_is_an_error_naming_the_sample() -> None:
    with (
        RewardExecutor(RewardSettings(), None) as executor,
        pytest.raises(ValueError, match="sample 0 of group 0 has no reward: give --rm-type or --custom-rm-path"),
    ):
        await executor.score(samples(1))


async def test_stuck_workers_are_killed_and_the_rest_is_scored() -> None:
    batch = samples(14)
    for sample in batch[:4]:
        sample.label = "stuck"
    with custom("stuck_if_told", num_workers=2, timeout_s=0.5) as executor:
        started = time.monotonic()
        with pytest.raises(RewardError) as raised:
            await executor.score(batch)
        elapsed = time.monotonic() - started
        assert [sample.reward for sample in batch] == [None] * 4 + [1.0] * 10
        assert elapsed < 6.0
        again = samples(10)
        await executor.score(again)
        assert [sample.reward for sample in again] == [1.0] * 10
    error = raised.value
    assert (error.sample_index, error.group_index, error.path) == (0, 0, "reward_hooks.stuck_if_told")
    assert error.cause == "it missed its deadline of 0.5 s and was killed"
    assert error.__notes__ == ["3 more reward calls failed"]


async def test_killing_a_worker_kills_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    with custom("stuck_with_child", timeout_s=2.0) as executor:
        with pytest.raises(RewardError, match="missed its deadline"):
            await executor.score(samples(1, metadata={"pid_file": str(pid_file)}))
        pids = [int(pid) for pid in pid_file.read_text().split()]
        assert gone_within(5.0, lambda: not any(_alive(pid) for pid in pids))


@pytest.mark.parametrize(
    ("label", "cause"),
    [
        ("raise", r"KeyError: 'no such answer'"),
        ("exit", r"SystemExit: bye"),
        ("die", r"its worker process died \(exit code 3\)"),
        ("nan", r"it returned nan, which is not finite"),
        ("text", r"it returned str 'great', not a number"),
        ("unpicklable", r"pickle"),
    ],
)
async def test_failures_name_sample_group_function_and_cause(label: str, cause: str) -> None:
    batch = samples(9)
    batch[6].label = label
    with custom("misbehave") as executor:
        with pytest.raises(RewardError, match=cause) as raised:
            await executor.score(batch)
        assert (raised.value.sample_index, raised.value.group_index) == (6, 1)
        assert [sample.reward for sample in batch] == [1.0] * 6 + [None] + [1.0] * 2
        if label == "raise":
            assert "reward_hooks.py" in raised.value.details
            assert 'raise KeyError("no such answer")' in raised.value.details


async def test_groups_are_scored_in_one_call_each() -> None:
    batch = samples(8)
    batch[1], batch[5] = batch[5], batch[1]
    with custom("ranks", group_rm=True) as executor:
        await executor.score(batch)
    # order within a group is the order of appearance
    assert [sample.reward for sample in batch] == [0.0, 0.0, 1.0, 2.0, 1.0, 3.0, 2.0, 3.0]


async def test_group_reward_of_the_wrong_length() -> None:
    with (
        custom("one_short", group_rm=True) as executor,
        pytest.raises(RewardError, match="one reward per sample: 4 samples, 3 rewards"),
    ):
        await executor.score(samples(4))


def test_group_reward_needs_a_function_for_groups() -> None:
    with pytest.raises(ValueError, match=r"--group-rm .* --rm-type math scores single samples"):
        RewardExecutor(RewardSettings(rm_type="math", group_rm=True), None)


async def test_async_functions_run_here_within_the_concurrency_limit() -> None:
    reward_hooks.most_running = 0
    batch = samples(40)
    with custom("counted", max_concurrency=5) as executor:
        await asyncio.gather(executor.score(batch[:20]), executor.score(batch[20:]))
    assert [sample.reward for sample in batch] == [0.25] * 40
    assert reward_hooks.most_running == 5


@pytest.mark.parametrize("label", ["slow", "stubborn"])
async def test_async_functions_have_the_same_deadline(label: str) -> None:
    batch = samples(3)
    batch[2].label = label
    with custom("misbehave_async", timeout_s=0.2) as executor:
        started = time.monotonic()
        with pytest.raises(RewardError, match=r"sample 2 of group 0 after 0\.2. s: it missed its deadline"):
            await executor.score(batch)
        assert time.monotonic() - started < 3.0
    assert [sample.reward for sample in batch] == [1.0, 1.0, None]


async def test_async_failure_keeps_its_cause() -> None:
    with (
        custom("misbehave_async") as executor,
        pytest.raises(RewardError, match="ValueError: judge is down") as raised,
    ):
        await executor.score(samples(1, label="raise"))
    assert isinstance(raised.value.__cause__, ValueError)


async def test_sleeping_rewards_run_side_by_side_and_do_not_block_the_loop() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    with custom("tenth_of_a_second", num_workers=16) as executor:
        ticker = asyncio.create_task(tick())
        await executor.score(samples(16))  # starts the workers
        started, ticks = time.monotonic(), 0
        await executor.score(samples(16))
        elapsed = time.monotonic() - started
        ticker.cancel()
    assert elapsed < 0.5
    assert ticks >= 5


async def test_many_cheap_calls_cost_little() -> None:
    batch = samples(128, response="so \\boxed{\\frac{1}{2}}", label="0.5")
    with RewardExecutor(RewardSettings(rm_type="math", num_workers=4), None) as executor:
        await executor.score(batch)
        started = time.monotonic()
        await executor.score(batch)
        elapsed = time.monotonic() - started
    assert {sample.reward for sample in batch} == {1.0}
    assert elapsed < 2.0


async def test_worker_processes_import_neither_torch_nor_ray_nor_the_main_module() -> None:
    import torch  # noqa: F401 - the owner has it, the workers must not

    batch = samples(3)
    with custom("heavy_modules") as executor:
        await executor.score(batch)
    assert {sample.reward for sample in batch} == {0.0}


def test_one_executor_serves_several_event_loops_one_after_another() -> None:
    with custom("half") as executor:
        for _ in range(3):
            batch = samples(5)
            asyncio.run(executor.score(batch))
            assert [sample.reward for sample in batch] == [0.5] * 5


async def test_close_leaves_no_process_and_ends_pending_calls() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    executor = custom("stuck_if_told", num_workers=2)
    pending = asyncio.create_task(executor.score(samples(6, label="stuck")))
    me = psutil.Process()
    started = await asyncio.to_thread(
        gone_within, 20.0, lambda: len({c.pid for c in me.children(recursive=True)} - before) == 3
    )
    assert started, "expected the zygote and two workers"
    await asyncio.to_thread(executor.close)
    with pytest.raises(RewardError, match="the reward pool was closed"):
        await pending
    assert {child.pid for child in me.children(recursive=True)} <= before
    executor.close()


async def test_losing_the_zygote_is_an_error_and_leaves_no_worker() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with custom("stuck_if_told", num_workers=2) as executor:
        await executor.score(samples(2))
        family = {c.pid: c for c in psutil.Process().children(recursive=True) if c.pid not in before}
        (zygote,) = [process for process in family.values() if process.ppid() == os.getpid()]
        pending = asyncio.create_task(executor.score(samples(2, label="stuck")))
        await asyncio.sleep(0.2)
        zygote.kill()
        with pytest.raises(RewardError, match="the process that starts reward workers ended with -9"):
            await asyncio.wait_for(pending, 20.0)
        assert gone_within(5.0, lambda: not any(_alive(pid) for pid in family))


OWNER = """
import asyncio, sys
from relax_engine.rewards import RewardExecutor, RewardSettings
from relax_engine.types import Sample
print("main runs", flush=True)
executor = RewardExecutor(RewardSettings(custom_rm_path="reward_hooks.stuck_if_told", num_workers=2), None)
asyncio.run(executor.score([Sample(), Sample()]))
print("scored", flush=True)
asyncio.run(executor.score([Sample(label="stuck"), Sample(label="stuck")]))
"""


def test_a_killed_owner_takes_its_workers_along_and_its_script_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        assert [owner.stdout.readline(), owner.stdout.readline()] == ["main runs\n", "scored\n"]
        workers = psutil.Process(owner.pid).children(recursive=True)
        assert len(workers) == 3
        owner.send_signal(signal.SIGKILL)
        owner.wait(10.0)
        assert gone_within(10.0, lambda: not any(_alive(process.pid) for process in workers))
        assert owner.stdout.read() == ""


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
