"""Buckets by `torch.distributed.broadcast` in a group of their own: NCCL between GPUs, gloo between hosts' memories."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from relax_engine.weight_sync.buckets import Bucket
from relax_engine.weight_sync.calls import Deadline, ReceiversFailedError, call_all, tell_all
from relax_engine.weight_sync.group import (
    GroupInitError,
    MeetingPoint,
    default_backend,
    join_group,
    leave_group,
)
from relax_engine.weight_sync.messages import GroupAddress, Receiver

logger = logging.getLogger(__name__)

_LEAVE_S = 10.0
_ARRIVE_S = 2.0
_POLL_S = 0.02


class Broadcast:
    """A group with the present receivers, kept from one transfer to the next while they are the same.

    A bucket is announced to every receiver, and broadcast meanwhile; a receiver answers when it verified it. One that
    dies, or refuses a bucket before taking part in its broadcast, holds up the others, which are connected to it:
    those who wait are not to blame, nor those who still answer while another does not.
    """

    alignment = 1

    def __init__(self, host: str, *, backend: str | None = None) -> None:
        self.host = host
        self.backend = backend or default_backend()
        self._meeting: MeetingPoint | None = None
        self._group: ProcessGroup | None = None
        self._address: GroupAddress | None = None
        self._members: tuple[str, ...] = ()
        self._sending: asyncio.Task[RuntimeError | None] | None = None

    def staging(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda" if self.backend == "nccl" else "cpu")

    async def open(self, receivers: Sequence[Receiver], deadline: Deadline) -> set[str]:
        if self._members != tuple(receiver.name for receiver in receivers):
            await self.close(receivers)
        # Before joining, so that a dead receiver is found without waiting for it in the group.
        bases = await call_all(receivers, lambda receiver: receiver.begin(), deadline)
        if self._group is None:
            await self._join(receivers, deadline)
        return set(bases)

    async def send(self, receivers: Sequence[Receiver], bucket: Bucket, deadline: Deadline) -> None:
        address = self._address
        assert address is not None
        self._sending = asyncio.create_task(self._broadcast(bucket.data))
        await call_all(receivers, lambda receiver: receiver.receive(bucket.meta, [address]), deadline, together=True)
        await asyncio.wait([self._sending], timeout=deadline.left())
        error: BaseException | None = self._sending.result() if self._sending.done() else TimeoutError()
        if error is not None:
            raise ReceiversFailedError({receiver.name: error for receiver in receivers})
        self._sending = None

    async def finish(
        self, receivers: Sequence[Receiver], digests: Mapping[str, int], version: int, deadline: Deadline
    ) -> None:
        """Every bucket was verified when it was sent."""

    async def close(self, receivers: Sequence[Receiver]) -> None:
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

    async def _broadcast(self, flat: Tensor) -> RuntimeError | None:
        error = await asyncio.to_thread(_send, flat, self._group)
        if error is not None:
            # Receivers that still wait for data notice now, instead of after their own timeout.
            self._drop_group()
        return error

    def _drop_group(self) -> None:
        if self._group is not None:
            leave_group(self._group)
            self._group = None
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None

    async def _join(self, receivers: Sequence[Receiver], deadline: Deadline) -> None:
        """Form a group with all receivers; the first that fails calls the others off."""
        meeting = self._meeting = MeetingPoint(self.host)
        size = 1 + sum(receiver.processes for receiver in receivers)
        # A name of its own for every group: a receiver may still be in those of an earlier sender.
        address = GroupAddress(self.host, meeting.port, f"weights-{uuid.uuid4().hex[:12]}", size, self.backend)
        ranks = _first_ranks(receivers)
        own = asyncio.create_task(asyncio.to_thread(join_group, address, 0, timeout_s=deadline.left()))
        joining = [
            asyncio.create_task(asyncio.wait_for(receiver.join(address, rank), deadline.left()))
            for receiver, rank in zip(receivers, ranks, strict=True)
        ]
        done, _ = await asyncio.wait([own, *joining], return_when=asyncio.FIRST_EXCEPTION)
        if not any(task.exception() for task in done):
            self._group, self._address = own.result(), address
            self._members = tuple(receiver.name for receiver in receivers)
            return
        absent = await _absent(meeting, address, receivers, ranks, joining)
        errors = {
            receiver.name: error
            for receiver, task in zip(receivers, joining, strict=True)
            if task.done() and (error := task.exception()) is not None
        }
        self._drop_group()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(own, *joining, return_exceptions=True), _LEAVE_S)
        await _leave([r for r, task in zip(receivers, joining, strict=True) if _succeeded(task)], address)
        if _succeeded(own):
            leave_group(own.result())
        # Not those who merely waited for the absent ones.
        blamed = (errors.keys() & absent) or absent or errors.keys() or {receiver.name for receiver in receivers}
        fallback = GroupInitError(f"it did not join {address.name!r} within {deadline.seconds:g} s")
        raise ReceiversFailedError({name: errors.get(name, fallback) for name in blamed})


def _first_ranks(receivers: Sequence[Receiver]) -> list[int]:
    """The first rank of each receiver; rank 0 is the sender."""
    ranks, following = [], 1
    for receiver in receivers:
        ranks.append(following)
        following += receiver.processes
    return ranks


async def _absent(
    meeting: MeetingPoint,
    address: GroupAddress,
    receivers: Sequence[Receiver],
    ranks: Sequence[int],
    joining: Sequence[asyncio.Task[None]],
) -> set[str]:
    """Receivers that did not come, when those still on their way have had time to.

    Who has come hears of the end of the meeting at once; who comes later finds nobody, and tries for its own timeout.
    """
    deadline = Deadline(_ARRIVE_S)
    while True:
        missing = meeting.absent(address)
        absent = {
            receiver.name: task
            for receiver, rank, task in zip(receivers, ranks, joining, strict=True)
            if missing.intersection(range(rank, rank + receiver.processes))
        }
        settled = 0 not in missing and all(task.done() for task in absent.values())
        if settled or not deadline.left():
            return set(absent)
        await asyncio.sleep(_POLL_S)


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _leave(receivers: Sequence[Receiver], address: GroupAddress) -> None:
    """Ask `receivers` to leave the group; one that cannot is about to be found out anyway."""
    for name, error in (await tell_all(receivers, lambda receiver: receiver.leave(address), _LEAVE_S)).items():
        logger.info("%s did not leave %s: %r", name, address.name, error)


def _send(flat: Tensor, group: ProcessGroup | None) -> RuntimeError | None:
    """Send; returns what failed, without the traceback that would keep the group's connections open."""
    try:
        dist.broadcast(flat, 0, group)
    except RuntimeError as error:
        return RuntimeError(str(error))
    return None
