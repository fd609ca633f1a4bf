"""What a process can say about itself and others: waits, stacks, the end of a log."""

import asyncio
import threading
from pathlib import Path

from relax_engine.utils.logs import log_tail
from relax_engine.utils.stacks import sample_stacks
from relax_engine.utils.waits import current_waits, waiting


def test_waits_are_listed_longest_first_and_end_with_an_error() -> None:
    try:
        with waiting("rows of train_3"), waiting("rank 1"):
            assert [what for what, _ in current_waits()] == ["rows of train_3", "rank 1"]
            assert all(seconds >= 0 for _, seconds in current_waits())
            raise KeyError
    except KeyError:
        assert current_waits() == []


def test_stacks_name_the_function_a_thread_is_in() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stands_here() -> None:
        entered.set()
        leave.wait(10)

    thread = threading.Thread(target=stands_here, name="worker")
    thread.start()
    entered.wait(10)
    try:
        assert "in stands_here" in sample_stacks()["thread worker"]
    finally:
        leave.set()
        thread.join()


async def test_stacks_name_every_coroutine_a_task_waits_in() -> None:
    async def waits_here() -> None:
        await asyncio.sleep(10)

    async def calls() -> None:
        await waits_here()

    task = asyncio.create_task(calls(), name="feeder")
    await asyncio.sleep(0)
    lines = sample_stacks()["task feeder"].splitlines()
    assert [line.rpartition(" in ")[2] for line in lines] == ["calls", "waits_here", "sleep"]
    task.cancel()


def test_the_tail_of_a_log_is_its_last_lines_without_colours(tmp_path: Path) -> None:
    path = tmp_path / "worker.err"
    path.write_text("x" * 100_000 + "\n" + "".join(f"\x1b[31mline {number}\x1b[0m\n" for number in range(50)))
    assert log_tail(path, lines=2) == "line 48\nline 49"
    assert log_tail(tmp_path / "elsewhere.err") == ""
