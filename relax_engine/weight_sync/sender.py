"""The sending side of a weight sync: one transaction from the trainer to every receiver.

Runs inside the trainer's source rank. How bytes travel is behind `Transport`, what a receiver does with them behind
`Receiver`; when to sync, and who receives, is decided by the actor role.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from relax_engine.weight_sync.buckets import Bucket, Packer, Staging
from relax_engine.weight_sync.calls import Deadline, ReceiversFailedError, call_all, tell_all
from relax_engine.weight_sync.checksum import base_digest
from relax_engine.weight_sync.codec import encode
from relax_engine.weight_sync.messages import BucketMeta, Receiver, SyncReport, WeightSyncError
from relax_engine.weight_sync.pipeline import one_ahead
from relax_engine.weight_sync.transports.base import Transport

logger = logging.getLogger(__name__)

_QUARANTINE_S = 5.0


class WeightSender:
    """Moves tensors to receivers as a transaction.

    States: IDLE -> PUSHING -> IDLE. Invariants: a receiver is in `committed` only when it verified every bucket and
    adopted the version; one that is to blame for a failure is quarantined, and the push starts again from the first
    bucket for the others. Each attempt has the whole deadline and costs at least one receiver, so a push ends. At
    most two buckets are staged at a time.

    With `delta` only tensors are sent whose digest differs from that of the last push, if every receiver says that
    it holds exactly that one; else all of them are.

    Trace with receivers a, b where b dies in bucket 2: open(a, b), bucket 1, bucket 2 fails at both, a answers and b
    does not -> quarantined {b: reason}, close(a), open(a), bucket 1..n, commit(a) -> committed [a].
    """

    def __init__(
        self, transport: Transport, *, bucket_bytes: int, timeout_s: float, delta: bool = False, compress: bool = False
    ) -> None:
        self.transport = transport
        self.timeout_s = timeout_s
        self.delta = delta
        self.compress = compress
        self._staging = Staging(bucket_bytes, transport.staging)
        self._held: Mapping[str, int] = {}
        self._pushing: int | None = None

    async def push(
        self,
        named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        receivers: Sequence[Receiver],
        version: int,
    ) -> SyncReport:
        """Send all tensors to all receivers and commit `version` on them.

        `named_tensors` is called at most once per attempt and then consumed to its end, whatever fails, because it
        may be collective over the training ranks. It is iterated in a worker thread.

        Raises:
            WeightSyncError: not one receiver committed, or another push is under way.
        """
        if self._pushing is not None:
            raise WeightSyncError(
                f"weight sync to version {version} was asked for while that to {self._pushing} is under way; "
                "wait for its end"
            )
        self._pushing = version
        try:
            return await self._push(named_tensors, receivers, version)
        finally:
            self._pushing = None

    async def close(self, receivers: Sequence[Receiver]) -> None:
        """Give up what connects this sender with `receivers` and all others."""
        await self.transport.close(receivers)
        await tell_all(receivers, lambda receiver: receiver.close(), _QUARANTINE_S)

    async def _push(
        self,
        named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        receivers: Sequence[Receiver],
        version: int,
    ) -> SyncReport:
        report = SyncReport(version)
        started = time.monotonic()
        remaining = list(receivers)
        try:
            while remaining and not report.committed:
                deadline = Deadline(self.timeout_s)
                try:
                    await self._attempt(named_tensors, remaining, report, deadline)
                except ReceiversFailedError as failure:
                    remaining = await self._quarantine(remaining, failure.errors, report, deadline)
        finally:
            await tell_all(receivers, lambda receiver: receiver.close(), _QUARANTINE_S)
        report.seconds = time.monotonic() - started
        if receivers and not report.committed:
            raise WeightSyncError(f"weight sync to version {version} failed on every receiver: {report.quarantined}")
        return report

    async def _attempt(
        self,
        named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        receivers: list[Receiver],
        report: SyncReport,
        deadline: Deadline,
    ) -> None:
        report.nbytes = report.payload_nbytes = report.skipped_nbytes = report.buckets = 0
        bases = await self.transport.open(receivers, deadline)
        held = self._held if self.delta and bases == {base_digest(self._held)} else {}
        packer = Packer(self._staging, held, alignment=self.transport.alignment)
        tensors = iter(named_tensors())
        buckets = one_ahead(map(self._prepare, packer.pack(tensors)))
        try:
            async with contextlib.aclosing(buckets):
                async for bucket in buckets:
                    await self.transport.send(receivers, bucket, deadline)
                    report.nbytes += bucket.meta.nbytes
                    report.payload_nbytes += bucket.meta.payload_nbytes
                    report.buckets += 1
        finally:
            await asyncio.to_thread(_consume, tensors)
        report.skipped_nbytes = packer.skipped_nbytes
        report.staging_nbytes = self._staging.peak_nbytes
        assert report.staging_nbytes <= 2 * max(self._staging.bucket_bytes, self._staging.largest_nbytes)
        await self.transport.finish(receivers, packer.digests, report.version, deadline)
        await call_all(receivers, lambda receiver: receiver.commit(report.version), deadline)
        self._held = packer.digests
        report.committed = [receiver.name for receiver in receivers]

    def _prepare(self, bucket: Bucket) -> Bucket:
        """The bucket as it travels; compressed it no longer needs its staging memory."""
        if not self.compress:
            return bucket
        meta = bucket.meta
        payload = encode(bucket.data.cpu(), meta.itemsize).to(bucket.data.device)
        return Bucket(BucketMeta(meta.tensors, meta.checksum, payload.numel()), payload, bucket.starts)

    async def _quarantine(
        self, receivers: list[Receiver], errors: Mapping[str, BaseException], report: SyncReport, deadline: Deadline
    ) -> list[Receiver]:
        """Part with the receivers in `errors`; returns the others."""
        reasons = {name: deadline.reason(error) for name, error in errors.items()}
        logger.warning("weight sync to version %d: quarantined %s", report.version, reasons)
        report.quarantined.update(reasons)
        # One that refused leaves as well: while it is there, the others may wait for it.
        refused = [r for r in receivers if r.name in errors and r.answered(errors[r.name])]
        others = [receiver for receiver in receivers if receiver.name not in errors]
        await self.transport.close([*others, *refused])
        for name, error in (await tell_all(refused, lambda r: r.quarantine(), _QUARANTINE_S)).items():
            logger.warning("%s did not hear that it is quarantined: %r", name, error)
        return others


def _consume(tensors: Iterable[tuple[str, Tensor]]) -> None:
    for _ in tensors:
        pass
