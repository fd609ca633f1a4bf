"""Buckets in shared memory of one host: written once by the trainer, read by every receiver where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from relax_engine.weight_sync.buckets import Bucket
from relax_engine.weight_sync.calls import Deadline, call_all
from relax_engine.weight_sync.messages import Receiver, SharedTensors
from relax_engine.weight_sync.shared import ALIGNMENT, share_tensors, shared_buffer


class SharedMemory:
    """No connection between the receivers, so one that fails holds up nobody."""

    alignment = ALIGNMENT

    def staging(self, nbytes: int) -> Tensor:
        return shared_buffer(nbytes)

    async def open(self, receivers: Sequence[Receiver], deadline: Deadline) -> set[str]:
        return set(await call_all(receivers, lambda receiver: receiver.begin(), deadline))

    async def send(self, receivers: Sequence[Receiver], bucket: Bucket, deadline: Deadline) -> None:
        sources = {
            receiver.name: [SharedTensors(share_tensors(bucket)) for _ in range(receiver.processes)]
            for receiver in receivers
        }
        await call_all(receivers, lambda receiver: receiver.receive(bucket.meta, sources[receiver.name]), deadline)

    async def finish(
        self, receivers: Sequence[Receiver], digests: Mapping[str, int], version: int, deadline: Deadline
    ) -> None:
        """Every bucket was verified when it was sent."""

    async def close(self, receivers: Sequence[Receiver]) -> None:
        """There is nothing to leave."""
