"""The sending side of a weight sync: one transaction from the trainer to every receiver.

Runs inside the trainer's source rank. What a receiver does with a bucket is behind `Receiver`;
when to sync, and who receives, is decided by the actor role.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, TCPStore

from relax_engine.errors import RelaxError
from relax_engine.weight_sync.buckets import fill_buckets, flatten
from relax_engine.weight_sync.group import default_backend, join_group, leave_group
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, Receiver, SyncReport

logger = logging.getLogger(__name__)


class WeightSyncError(RelaxError):
    """No receiver holds the new weights; the version did not advance."""


class _ReceiverFailed(Exception):
    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class WeightSender:
    """Moves tensors to receivers as a transaction.

    States: CLOSED -> OPEN (a group with the present receivers) -> PUSHING -> OPEN, and from any
    state to CLOSED on a failure. Invariant: a receiver is in `committed` only when it verified
    every bucket and adopted the version; one that fails at any point is quarantined, the group is
    rebuilt without it, and the push starts again from the first bucket for the others.

    Trace with receivers a, b where b dies in bucket 2: open(a, b), bucket 1, bucket 2 fails at b,
    close, open(a), bucket 1..n, commit(a) -> committed [a], quarantined {b: reason}.
    """

    def __init__(self, *, host: str, bucket_bytes: int, timeout_s: float) -> None:
        self.host = host
        self.bucket_bytes = bucket_bytes
        self.timeout_s = timeout_s
        self._store: TCPStore | None = None
        self._group: ProcessGroup | None = None
        self._address: GroupAddress | None = None
        self._members: tuple[str, ...] = ()
        self._generation = 0

    async def push(
        self,
        named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        receivers: Sequence[Receiver],
        version: int,
    ) -> SyncReport:
        """Send all tensors to all receivers and commit `version` on them.

        `named_tensors` is called once per attempt and may be collective over the training ranks.

        Raises:
            WeightSyncError: not one receiver committed.
        """
        report = SyncReport(version)
        started = time.monotonic()
        remaining = list(receivers)
        while remaining:
            try:
                await self._attempt(named_tensors, remaining, report)
            except _ReceiverFailed as failure:
                logger.warning("weight sync to version %d: quarantined %s", version, failure.reasons)
                report.quarantined.update(failure.reasons)
                remaining = [receiver for receiver in remaining if receiver.name not in failure.reasons]
                await self._close(remaining)
                continue
            break
        report.seconds = time.monotonic() - started
        if receivers and not report.committed:
            raise WeightSyncError(f"weight sync to version {version} failed on every receiver: {report.quarantined}")
        return report

    async def _attempt(
        self,
        named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        receivers: list[Receiver],
        report: SyncReport,
    ) -> None:
        report.nbytes = report.buckets = 0
        address, group = await self._open(receivers)
        await self._all(receivers, lambda receiver: receiver.begin())
        for bucket in fill_buckets(named_tensors(), self.bucket_bytes):
            meta, flat = flatten(bucket)
            await self._transfer(receivers, meta, flat, address, group)
            report.nbytes += meta.nbytes
            report.buckets += 1
        await self._all(receivers, lambda receiver: receiver.commit(report.version))
        report.committed = [receiver.name for receiver in receivers]

    async def _transfer(
        self,
        receivers: Sequence[Receiver],
        meta: BucketMeta,
        flat: Tensor,
        address: GroupAddress,
        group: ProcessGroup,
    ) -> None:
        broadcast = asyncio.create_task(asyncio.to_thread(dist.broadcast, flat, 0, group))
        failed: _ReceiverFailed | None = None
        try:
            await self._all(receivers, lambda receiver: receiver.receive(meta, address))
        except _ReceiverFailed as failure:
            failed = failure
        try:
            await asyncio.wait_for(broadcast, self.timeout_s)
        except (RuntimeError, TimeoutError) as error:
            if failed is None:
                reason = f"broadcast of {meta.nbytes} bytes failed: {error or 'deadline passed'}"
                failed = _ReceiverFailed({receiver.name: reason for receiver in receivers})
        if failed is not None:
            raise failed

    async def _open(self, receivers: Sequence[Receiver]) -> tuple[GroupAddress, ProcessGroup]:
        members = tuple(receiver.name for receiver in receivers)
        if self._group is not None and self._address is not None and members == self._members:
            return self._address, self._group
        await self._close(receivers)
        if self._store is None:
            self._store = TCPStore(self.host, 0, is_master=True, wait_for_workers=False)
        self._generation += 1
        address = GroupAddress(
            self.host, self._store.port, f"weights-{self._generation}", len(receivers) + 1, default_backend()
        )
        joining = asyncio.create_task(
            asyncio.to_thread(join_group, address, 0, timeout_s=self.timeout_s, store=self._store)
        )
        ranks = {receiver.name: rank for rank, receiver in enumerate(receivers, start=1)}
        failed: _ReceiverFailed | None = None
        try:
            await self._all(receivers, lambda receiver: receiver.join(address, ranks[receiver.name]))
        except _ReceiverFailed as failure:
            failed = failure
        try:
            group = await joining
        except RelaxError as error:
            raise failed or _ReceiverFailed({name: str(error) for name in members}) from error
        if failed is not None:
            leave_group(group)
            raise failed
        self._group, self._address, self._members = group, address, members
        return address, group

    async def _close(self, receivers: Sequence[Receiver]) -> None:
        """Leave the present group, together with those of `receivers` that are in it."""
        group, address, members = self._group, self._address, self._members
        self._group, self._address, self._members = None, None, ()
        if group is None or address is None:
            return
        present = [receiver for receiver in receivers if receiver.name in members]
        results = await asyncio.gather(*(receiver.leave(address) for receiver in present), return_exceptions=True)
        for receiver, result in zip(present, results, strict=True):
            if isinstance(result, BaseException):
                logger.warning("%s did not leave %s: %s", receiver.name, address.name, result)
        leave_group(group)

    async def _all(self, receivers: Sequence[Receiver], call: Callable[[Receiver], Coroutine[Any, Any, None]]) -> None:
        """Run `call` on all receivers under the deadline; the error names each one that failed."""
        results = await asyncio.gather(
            *(asyncio.wait_for(call(receiver), self.timeout_s) for receiver in receivers), return_exceptions=True
        )
        reasons = {}
        for receiver, result in zip(receivers, results, strict=True):
            if isinstance(result, asyncio.CancelledError):
                raise result
            if isinstance(result, BaseException):
                reasons[receiver.name] = (
                    f"no answer within {self.timeout_s:g} s" if isinstance(result, TimeoutError) else f"{result!r}"
                )
        if reasons:
            raise _ReceiverFailed(reasons)
