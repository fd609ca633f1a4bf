"""Calling all receivers at once under one deadline, and finding out which of them to blame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from relax_engine.weight_sync.messages import Receiver

T = TypeVar("T")

_GRACE_S = 1.0


class ReceiversFailedError(Exception):
    """What each receiver that is to blame raised, none of them without an error."""

    def __init__(self, errors: Mapping[str, BaseException]) -> None:
        super().__init__(errors)
        self.errors = dict(errors)


class Deadline:
    """The moment by which an attempt must have succeeded."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then, 0 afterwards."""
        return max(0.0, self._at - time.monotonic())

    def reason(self, error: BaseException) -> str:
        """`error` as text."""
        if isinstance(error, TimeoutError):
            return f"no answer within {self.seconds:g} s"
        return str(error) or repr(error)


async def call_all(
    receivers: Sequence[Receiver],
    call: Callable[[Receiver], Coroutine[Any, Any, T]],
    deadline: Deadline,
    *,
    together: bool = False,
) -> list[T]:
    """Run `call` on all receivers and return the answers in order.

    With `together` none can succeed without the others, so the first failure ends the wait.

    Raises:
        ReceiversFailedError: those to blame: the ones that do not answer, else all that failed.
    """
    tasks = [asyncio.create_task(asyncio.wait_for(call(receiver), deadline.left())) for receiver in receivers]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION if together else asyncio.ALL_COMPLETED)
        if not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=_GRACE_S)
        ended = [(receiver, task) for receiver, task in zip(receivers, tasks, strict=True) if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = {receiver.name: error for receiver, task in ended if (error := task.exception()) is not None}
    silent = {r.name: errors[r.name] for r, _ in ended if r.name in errors and not r.answered(errors[r.name])}
    if errors:
        raise ReceiversFailedError(silent or errors)
    return [task.result() for task in tasks]


async def tell_all(
    receivers: Sequence[Receiver], call: Callable[[Receiver], Coroutine[Any, Any, None]], timeout_s: float
) -> dict[str, BaseException]:
    """Run `call` on all receivers, whatever becomes of it; returns the errors."""
    results = await asyncio.gather(
        *(asyncio.wait_for(call(receiver), timeout_s) for receiver in receivers), return_exceptions=True
    )
    pairs = zip(receivers, results, strict=True)
    return {receiver.name: result for receiver, result in pairs if isinstance(result, BaseException)}
