"""Simulated time: a heap of events, and processes written as generators.

A process yields a number of seconds to sleep, or a `Signal` to wait for.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator

Process = Generator["float | Signal", None, None]


class Signal:
    """Wakes everybody who waits for it."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the signal is fired next."""
        self._waiting.append(wake)

    def fire(self) -> None:
        """Wake all who wait now."""
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


class Clock:
    """The present time in seconds, and what happens next. Events of the same time happen in order of scheduling."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let `event` happen in `seconds`."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def start(self, process: Process) -> None:
        """Run a process from now on."""

        def resume() -> None:
            wait = next(process, None)
            if isinstance(wait, Signal):
                wait.subscribe(lambda: self.after(0.0, resume))
            elif wait is not None:
                self.after(wait, resume)

        self.after(0.0, resume)

    def run(self, finished: Callable[[], bool]) -> None:
        """Let events happen until `finished`.

        Raises:
            RuntimeError: nothing is left to happen, and it is not.
        """
        while not finished():
            if not self._events:
                raise RuntimeError(f"the simulation stands still at {self.now:.3f} s: every process waits for another")
            self.now, _, event = heapq.heappop(self._events)
            event()
