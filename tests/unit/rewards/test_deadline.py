"""The time limit holds in every thread, and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from typing import Any

from relax_engine.rewards.answers.deadline import within


def forever() -> None:
    while True:
        pass


def stubborn() -> str:
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        try:
            while time.monotonic() < end:
                pass
        except BaseException:  # noqa: BLE001 - what a library might do
            continue
    return "done"


def test_results_and_errors_pass() -> None:
    assert within(5.0, lambda: 3) == 3
    try:
        within(5.0, lambda: 1 // 0)
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError


def test_a_call_is_cut_off_in_the_main_thread_and_in_others() -> None:
    results: list[Any] = []

    def measure() -> None:
        started = time.monotonic()
        results.append((within(0.2, forever), time.monotonic() - started))

    measure()
    thread = threading.Thread(target=measure)
    thread.start()
    thread.join(10.0)
    assert [result for result, _ in results] == [None, None]
    assert all(0.15 < seconds < 5.0 for _, seconds in results)


def test_a_call_that_swallows_the_interruption_ends_on_its_own() -> None:
    assert within(0.1, stubborn) in (None, "done")
    assert sum(range(100_000)) == 4_999_950_000  # no interruption arrives late
