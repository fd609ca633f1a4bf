"""The sending side of a weight sync: one transaction from the trainer to every receiver.

Runs inside the trainer's source rank. What a receiver does with a bucket is behind `Receiver`;
when to sync, and who receives, is decided by the actor role.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, TCPStore

from relax_engine.weight_sync.buckets import fill_buckets, flatten
from relax_engine.weight_sync.group import (
    GroupInitError,
    absent_members,
    call_off,
    default_backend,
    join_group,
    leave_group,
)
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, Receiver, SyncReport, WeightSyncError

logger = logging.getLogger(__name__)

_LEAVE_S = 10.0
_GRACE_S = 1.0


class _ReceiversFailed(Exception):
    """What each receiver raised, none of them without an error."""

    def __init__(self, errors: dict[str, BaseException]) -> None:
        super().__init__(errors)
        self.errors = errors


class WeightSender:
    """Moves tensors to receivers as a transaction.

    States: CLOSED -> OPEN (a group with the present receivers) -> PUSHING -> OPEN, and from any
    state to CLOSED on a failure. Invariants: a receiver is in `committed` only when it verified
    every bucket and adopted the version; one that is to blame for a failure is quarantined, the
    group is rebuilt without it, and the push starts again from the first bucket for the others.
    Each attempt has the whole deadline and costs at least one receiver, so a push ends.

    A receiver that dies, or refuses a bucket before taking part in its broadcast, holds up the others,
    which are connected to it. Those who wait are not to blame, nor those who still answer while
    another does not.

    Trace with receivers a, b where b dies in bucket 2: begin(a, b), join(a, b), bucket 1, bucket 2
    fails at both, a answers and b does not -> quarantined {b: reason}, leave(a), begin(a), join(a),
    bucket 1..n, commit(a) -> committed [a].
    """

    def __init__(self, *, host: str, bucket_bytes: int, timeout_s: float) -> None:
        self.host = host
        self.bucket_bytes = bucket_bytes
        self.timeout_s = timeout_s
        self._store: TCPStore | None = None
        self._group: ProcessGroup | None = None
        self._address: GroupAddress | None = None
        self._members: tuple[str, ...] = ()
        self._sending: asyncio.Task[RuntimeError | None] | None = None
        self._deadline = 0.0

    async def push(
        self,
        named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        receivers: Sequence[Receiver],
        version: int,
    ) -> SyncReport:
        """Send all tensors to all receivers and commit `version` on them.

        `named_tensors` is called at most once per attempt and then consumed to its end, whatever
        fails, because it may be collective over the training ranks.

        Raises:
            WeightSyncError: not one receiver committed.
        """
        report = SyncReport(version)
        started = time.monotonic()
        remaining = list(receivers)
        while remaining and not report.committed:
            self._deadline = time.monotonic() + self.timeout_s
            try:
                await self._attempt(named_tensors, remaining, report)
            except _ReceiversFailed as failure:
                reasons = {name: self._reason(error) for name, error in failure.errors.items()}
                logger.warning("weight sync to version %d: quarantined %s", version, reasons)
                report.quarantined.update(reasons)
                # One that refused leaves as well: while it is there, the others may wait for it.
                await self.close([r for r in remaining if r.name not in reasons or r.answered(failure.errors[r.name])])
                remaining = [receiver for receiver in remaining if receiver.name not in reasons]
        report.seconds = time.monotonic() - started
        if receivers and not report.committed:
            raise WeightSyncError(f"weight sync to version {version} failed on every receiver: {report.quarantined}")
        return report

    async def close(self, receivers: Sequence[Receiver]) -> None:
        """Leave the present group, together with those of `receivers` that are in it."""
        address, members = self._address, self._members
        self._address, self._members = None, ()
        if address is None:
            return
        await _leave([receiver for receiver in receivers if receiver.name in members], address)
        if self._sending is not None:
            # Without receivers it fails at once, or else after the group's own timeout.
            await asyncio.wait([self._sending], timeout=_LEAVE_S)
            self._sending = None
        self._drop_group()

    async def _attempt(
        self,
        named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        receivers: list[Receiver],
        report: SyncReport,
    ) -> None:
        report.nbytes = report.buckets = 0
        if self._members != tuple(receiver.name for receiver in receivers):
            await self.close(receivers)
        # Before joining, so that a dead receiver is found without waiting for it in the group.
        await self._all(receivers, lambda receiver: receiver.begin())
        if self._group is None:
            await self._join(receivers)
        tensors = iter(named_tensors())
        try:
            for bucket in fill_buckets(tensors, self.bucket_bytes):
                meta, flat = flatten(bucket)
                await self._transfer(receivers, meta, flat)
                report.nbytes += meta.nbytes
                report.buckets += 1
        finally:
            for _ in tensors:
                pass
        await self._all(receivers, lambda receiver: receiver.commit(report.version))
        report.committed = [receiver.name for receiver in receivers]

    async def _transfer(self, receivers: Sequence[Receiver], meta: BucketMeta, flat: Tensor) -> None:
        """Broadcast one bucket; it counts as transferred when every receiver verified it."""
        address = self._address
        assert address is not None
        self._sending = asyncio.create_task(self._send(flat))
        await self._all(receivers, lambda receiver: receiver.receive(meta, address), together=True)
        await asyncio.wait([self._sending], timeout=self._left())
        error: BaseException | None = self._sending.result() if self._sending.done() else TimeoutError()
        if error is not None:
            raise _ReceiversFailed({receiver.name: error for receiver in receivers})
        self._sending = None

    async def _send(self, flat: Tensor) -> RuntimeError | None:
        error = await asyncio.to_thread(_broadcast, flat, self._group)
        if error is not None:
            # Receivers that still wait for data notice now, instead of after their own timeout.
            self._drop_group()
        return error

    def _drop_group(self) -> None:
        if self._group is not None:
            leave_group(self._group)
            self._group = None

    async def _join(self, receivers: Sequence[Receiver]) -> None:
        """Form a group with all receivers; the first that fails calls the others off."""
        if self._store is None:
            self._store = TCPStore(self.host, 0, is_master=True, wait_for_workers=False)
        store = self._store
        # A name of its own for every group: a receiver may still be in those of an earlier sender.
        address = GroupAddress(
            self.host, store.port, f"weights-{uuid.uuid4().hex[:12]}", len(receivers) + 1, default_backend()
        )
        own = asyncio.create_task(asyncio.to_thread(join_group, address, 0, timeout_s=self._left(), store=store))
        joining = [
            asyncio.create_task(asyncio.wait_for(receiver.join(address, rank), self._left()))
            for rank, receiver in enumerate(receivers, start=1)
        ]
        done, _ = await asyncio.wait([own, *joining], return_when=asyncio.FIRST_EXCEPTION)
        if not any(task.exception() for task in done):
            self._group, self._address = own.result(), address
            self._members = tuple(receiver.name for receiver in receivers)
            return
        absent = {receivers[rank - 1].name for rank in absent_members(address, store) if rank}
        errors = {
            receiver.name: error
            for receiver, task in zip(receivers, joining, strict=True)
            if task in done and (error := task.exception()) is not None
        }
        call_off(address, store, f"{sorted(errors or absent)} failed")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(own, *joining, return_exceptions=True), _LEAVE_S)
        await _leave([r for r, task in zip(receivers, joining, strict=True) if _succeeded(task)], address)
        if _succeeded(own):
            leave_group(own.result())
        # Not those who merely waited for the absent ones.
        blamed = (errors.keys() & absent) or absent or errors.keys()
        fallback = GroupInitError(f"it did not join {address.name!r} within {self.timeout_s:g} s")
        raise _ReceiversFailed({name: errors.get(name, fallback) for name in blamed})

    async def _all(
        self,
        receivers: Sequence[Receiver],
        call: Callable[[Receiver], Coroutine[Any, Any, None]],
        *,
        together: bool = False,
    ) -> None:
        """Run `call` on all receivers under the attempt's deadline.

        With `together` none can succeed without the others, so the first failure ends the wait.

        Raises:
            _ReceiversFailed: those to blame: the ones that do not answer, else all that failed.
        """
        tasks = [asyncio.create_task(asyncio.wait_for(call(receiver), self._left())) for receiver in receivers]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION if together else asyncio.ALL_COMPLETED)
            await asyncio.wait(tasks, timeout=_GRACE_S)
            ended = [(receiver, task) for receiver, task in zip(receivers, tasks, strict=True) if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        errors = {receiver.name: error for receiver, task in ended if (error := task.exception()) is not None}
        silent = {r.name: errors[r.name] for r, _ in ended if r.name in errors and not r.answered(errors[r.name])}
        if errors:
            raise _ReceiversFailed(silent or errors)

    def _left(self) -> float:
        """Seconds until the deadline of this attempt."""
        return max(0.0, self._deadline - time.monotonic())

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self.timeout_s:g} s"
        return str(error) or repr(error)


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _leave(receivers: Sequence[Receiver], address: GroupAddress) -> None:
    """Ask `receivers` to leave the group; one that cannot is about to be found out anyway."""
    results = await asyncio.gather(
        *(asyncio.wait_for(receiver.leave(address), _LEAVE_S) for receiver in receivers), return_exceptions=True
    )
    for receiver, result in zip(receivers, results, strict=True):
        if isinstance(result, BaseException):
            logger.info("%s did not leave %s: %r", receiver.name, address.name, result)


def _broadcast(flat: Tensor, group: ProcessGroup | None) -> RuntimeError | None:
    """Send; returns what failed, without the traceback that would keep the group's connections open."""
    try:
        dist.broadcast(flat, 0, group)
    except RuntimeError as error:
        return RuntimeError(str(error))
    return None
