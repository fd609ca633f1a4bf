"""What a transport is: how the bytes of packed buckets get from the trainer to receivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from relax_engine.weight_sync.buckets import Bucket
from relax_engine.weight_sync.calls import Deadline
from relax_engine.weight_sync.messages import Receiver


class Transport(Protocol):
    """Carries one transfer at a time: `open`, `send` for each bucket, `finish`.

    After `finish` every receiver holds all tensors, verified and not yet in use: what remains is their `commit`. Each
    coroutine raises `calls.ReceiversFailedError` with the receivers to blame, and never waits beyond the deadline.
    """

    alignment: int
    """Bytes that the address of every tensor in a bucket is a multiple of."""

    def staging(self, nbytes: int) -> Tensor:
        """Memory (uint8) in which buckets are packed."""

    async def open(self, receivers: Sequence[Receiver], deadline: Deadline) -> set[str]:
        """Prepare for a transfer to `receivers`; returns the digests of the weights that the other side holds."""

    async def send(self, receivers: Sequence[Receiver], bucket: Bucket, deadline: Deadline) -> None:
        """Carry one bucket; on return nobody needs its memory."""

    async def finish(
        self, receivers: Sequence[Receiver], digests: Mapping[str, int], version: int, deadline: Deadline
    ) -> None:
        """The last bucket was sent; `digests` are those of all tensors of `version`, sent or held."""

    async def close(self, receivers: Sequence[Receiver]) -> None:
        """Give up what connects the trainer with `receivers` and all others."""
