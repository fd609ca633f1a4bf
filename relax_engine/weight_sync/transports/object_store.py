"""Buckets as files of an object store: written once, pulled by every receiver that can reach it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from relax_engine.weight_sync.buckets import Bucket
from relax_engine.weight_sync.calls import Deadline, call_all
from relax_engine.weight_sync.messages import Receiver
from relax_engine.weight_sync.store import VersionWriter, WeightStore, WeightStoreError

T = TypeVar("T")


class ObjectStore:
    """Receivers go on generating while a version is written, and pause only to pull it.

    What they hold does not matter here: a version names the file of every tensor, and a receiver reads those that
    differ from its own.
    """

    alignment = 1

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self._writer: VersionWriter | None = None

    def staging(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    async def open(self, receivers: Sequence[Receiver], deadline: Deadline) -> set[str]:
        self._writer = self.store.writer()
        return {self._writer.base}

    async def send(self, receivers: Sequence[Receiver], bucket: Bucket, deadline: Deadline) -> None:
        await self._write(lambda writer: writer.add(bucket), deadline)

    async def finish(
        self, receivers: Sequence[Receiver], digests: Mapping[str, int], version: int, deadline: Deadline
    ) -> None:
        url = await self._write(lambda writer: writer.publish(digests, version), deadline)
        await call_all(receivers, lambda receiver: receiver.begin(), deadline)
        await call_all(receivers, lambda receiver: receiver.pull(url, version), deadline)

    async def _write(self, work: Callable[[VersionWriter], T], deadline: Deadline) -> T:
        assert self._writer is not None
        try:
            return await asyncio.wait_for(asyncio.to_thread(work, self._writer), deadline.left())
        except TimeoutError as error:
            raise WeightStoreError(f"{self.store.url} took longer than {deadline.seconds:g} s to write") from error

    async def close(self, receivers: Sequence[Receiver]) -> None:
        """There is nothing to leave."""
