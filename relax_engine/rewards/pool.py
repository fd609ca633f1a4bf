"""A pool of worker processes whose calls have deadlines that hold.

What lives here: queueing, batching, deadlines, replacement of stuck or dead workers. What does not:
which function scores which sample (`executor`), and how processes start (`forks`, `zygote`).

A thread per worker takes calls from one queue. Cheap calls travel many at a time: a batch is as large
as is expected to run for `BATCH_SECONDS`, from the durations seen so far. The deadline is per call:
when it passes, the worker is killed, that call fails, and the calls behind it in the batch go back
to the head of the queue.
"""

from __future__ import annotations

import collections
import pickle
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from relax_engine.rewards.forks import ForkedWorkers, ZygoteError
from relax_engine.rewards.worker import CallRequest, CallResult

BATCH_SECONDS = 0.01
MAX_BATCH = 64
LOAD_DEADLINE_S = 120.0
CLOSED = CallResult(None, 0.0, "the reward pool was closed")


@dataclass(slots=True)
class _Call:
    request: CallRequest
    timeout_s: float
    future: Future[CallResult] = field(default_factory=Future)

    def claim(self) -> bool:
        """False if the call is over, or its caller gave up before it was taken from the queue."""
        if self.future.done():
            return False
        return self.future.running() or self.future.set_running_or_notify_cancel()


@dataclass(slots=True)
class _Worker:
    pid: int
    connection: Connection


class _WorkerDied(Exception):
    """The connection to a worker broke."""


class WorkerPool:
    """Runs reward functions in at most `max_workers` processes, started when there is work for them.

    Example: with two workers and four calls that never return, each call fails at its deadline, its
    worker is replaced, and the calls queued behind them run as if nothing had happened.
    """

    def __init__(self, *, args: Any, max_workers: int, preload: Sequence[str] = ()) -> None:
        """Start the process that workers are forked from; it imports `preload` in the background.

        Raises:
            TypeError: `args` cannot be pickled.
        """
        self._forks = ForkedWorkers(args, preload)
        self._max_workers = max_workers
        self._condition = threading.Condition()
        self._queue: collections.deque[_Call] = collections.deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False
        self._typical_s: dict[str, float] = {}

    def submit(
        self, reference: str, payload: Any, timeout_s: float, arguments: Mapping[str, Any] | None = None
    ) -> Future[CallResult]:
        """Queue one call of the function at `reference`; the future's result says how it went.

        Raises:
            RuntimeError: the pool is closed.
            Exception: `payload` or `arguments` cannot be pickled.
        """
        data = pickle.dumps((payload, dict(arguments or {})), pickle.HIGHEST_PROTOCOL)
        call = _Call(CallRequest(reference, data), timeout_s)
        with self._condition:
            if self._closed:
                raise RuntimeError("the reward pool is closed")
            self._queue.append(call)
            if len(self._threads) < self._max_workers and self._needs_worker(reference):
                thread = threading.Thread(target=self._serve, name=f"reward-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._condition.notify()
        return call.future

    def close(self) -> None:
        """Kill all workers; calls that have not finished end with a cause. No process is left. Idempotent."""
        with self._condition:
            if self._closed:
                return
            self._closed = True
            pending = list(self._queue)
            self._queue.clear()
            self._condition.notify_all()
        for call in pending:
            if call.claim():
                call.future.set_result(CLOSED)
        self._forks.close()
        for thread in self._threads:
            thread.join(LOAD_DEADLINE_S)

    def _needs_worker(self, reference: str) -> bool:
        if len(self._queue) <= self._idle:
            return False
        typical_s = self._typical_s.get(reference)
        return typical_s is None or len(self._queue) * typical_s > BATCH_SECONDS * len(self._threads)

    def _serve(self) -> None:
        worker: _Worker | None = None
        while batch := self._next_batch():
            try:
                if worker is not None and worker.connection.poll(0):  # idle workers say nothing: this is its end
                    self._dismiss(worker)
                    worker = None
                worker = worker or _Worker(*self._forks.start_worker())
                if not self._run(worker, batch):
                    self._dismiss(worker)
                    worker = None
            except (ZygoteError, OSError) as error:
                outcome = CLOSED if self._closed else CallResult(None, 0.0, f"no worker can run it: {error}")
                for call in batch:
                    if not call.future.done():
                        call.future.set_result(outcome)
                worker = None
        if worker is not None:
            worker.connection.close()

    def _next_batch(self) -> list[_Call]:
        """The next calls to run; empty when the pool is closed."""
        batch: list[_Call] = []
        with self._condition:
            while not batch and not self._closed:
                self._idle += 1
                self._condition.wait_for(lambda: self._queue or self._closed)
                self._idle -= 1
                limit = min(MAX_BATCH, -(-len(self._queue) // self._max_workers))
                seconds = 0.0
                while self._queue and len(batch) < limit and (not batch or seconds < BATCH_SECONDS):
                    call = self._queue.popleft()
                    if call.claim():
                        batch.append(call)
                        seconds += self._typical_s.get(call.request.reference, BATCH_SECONDS)
        return batch

    def _run(self, worker: _Worker, batch: list[_Call]) -> bool:
        """Run a batch; False when the worker must be replaced. Calls it did not come to are queued again."""
        waiting = collections.deque(batch)
        started = time.monotonic()
        try:
            _send(worker, [call.request for call in batch])
            if _receive(worker, LOAD_DEADLINE_S) is None:
                cause = f"importing it took longer than {LOAD_DEADLINE_S:g} s"
                waiting.popleft().future.set_result(CallResult(None, LOAD_DEADLINE_S, cause))
                return False
            while waiting:
                started = time.monotonic()
                call = waiting[0]
                data = _receive(worker, call.timeout_s)
                waiting.popleft()
                if data is None:
                    self._note(call, call.timeout_s)
                    cause = f"it missed its deadline of {call.timeout_s:g} s and was killed"
                    call.future.set_result(CallResult(None, call.timeout_s, cause, lost=True))
                    return False
                result = _decode(data)
                self._note(call, result.elapsed_s)
                call.future.set_result(result)
            return True
        except _WorkerDied:
            cause = CLOSED.cause if self._closed else f"its worker process died ({self._forks.kill_worker(worker.pid)})"
            result = CallResult(None, time.monotonic() - started, cause, lost=not self._closed)
            waiting.popleft().future.set_result(result)
            worker.pid = 0
            return False
        finally:
            self._put_back(waiting)

    def _note(self, call: _Call, elapsed_s: float) -> None:
        known = self._typical_s.get(call.request.reference, elapsed_s)
        self._typical_s[call.request.reference] = 0.8 * known + 0.2 * elapsed_s

    def _dismiss(self, worker: _Worker) -> None:
        if worker.pid and not self._closed:
            self._forks.kill_worker(worker.pid)
        worker.connection.close()

    def _put_back(self, calls: Iterable[_Call]) -> None:
        with self._condition:
            if not self._closed:
                self._queue.extendleft(reversed(list(calls)))
                self._condition.notify_all()
                return
        for call in calls:
            call.future.set_result(CLOSED)


def _send(worker: _Worker, requests: list[CallRequest]) -> None:
    try:
        worker.connection.send_bytes(pickle.dumps(requests, pickle.HIGHEST_PROTOCOL))
    except OSError as error:
        raise _WorkerDied from error


def _receive(worker: _Worker, timeout_s: float) -> bytes | None:
    """The next message; None when it did not come in time."""
    try:
        return worker.connection.recv_bytes() if worker.connection.poll(timeout_s) else None
    except (EOFError, OSError) as error:
        raise _WorkerDied from error


def _decode(data: bytes) -> CallResult:
    try:
        result: CallResult = pickle.loads(data)
    except Exception as error:  # noqa: BLE001 - whatever class the user's function returned
        return CallResult(None, 0.0, f"its return value cannot be read back: {type(error).__name__}: {error}")
    return result
