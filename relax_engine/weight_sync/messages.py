"""What travels beside the weights: addresses, bucket descriptions, reports. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from relax_engine.errors import RelaxError

_ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


class WeightSyncError(RelaxError):
    """No receiver holds the new weights, or one that the run cannot do without does not."""


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where a weight-update group meets: what a member needs in order to join."""

    host: str
    port: int
    name: str
    world_size: int
    backend: str


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Name, dtype (`torch.float32` without the prefix) and shape of one Hugging Face tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Payload bytes.

        Raises:
            KeyError: a dtype that weights do not have.
        """
        return math.prod(self.shape) * _ITEM_SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class BucketMeta:
    """What a receiver must know about one bucket before its bytes.

    The checksum is over the tensors in order (`checksum.tensor_checksum`). A bucket that travels compressed has the
    size of what travels in `encoded_nbytes`.
    """

    tensors: tuple[TensorMeta, ...]
    checksum: str
    encoded_nbytes: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def payload_nbytes(self) -> int:
        """Bytes that travel."""
        return self.nbytes if self.encoded_nbytes is None else self.encoded_nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one value, 1 where the tensors differ."""
        sizes = {_ITEM_SIZES[tensor.dtype] for tensor in self.tensors}
        return sizes.pop() if len(sizes) == 1 else 1


@dataclass(frozen=True, slots=True)
class SharedTensors:
    """Handles of a bucket's tensors in memory of this host, as SGLang's `/update_weights_from_tensor` takes them.

    One process can open them, once (`shared.share_tensors`).
    """

    serialized: bytes


Source = GroupAddress | SharedTensors
"""Where a receiver finds the bytes of a bucket: in the next broadcast of a group, or in shared memory."""


class Receiver(Protocol):
    """One process that ends up with the weights. Every coroutine raises on failure."""

    @property
    def name(self) -> str:
        """Unique among the receivers; what reports call it."""

    @property
    def processes(self) -> int:
        """Number of processes behind it, each a member of a group and an opener of shared memory."""

    def answered(self, error: BaseException) -> bool:
        """Whether `error` is what a living receiver answered, rather than its silence or death."""

    async def join(self, address: GroupAddress, rank: int) -> None:
        """Enter the update group as `rank` and following; returns when the group is complete."""

    async def leave(self, address: GroupAddress) -> None:
        """Leave the update group and drop what was received through it."""

    async def begin(self) -> str:
        """Stop using the weights (pause, retract) and open the transaction; drops one that is open.

        Returns the digest (`checksum.base_digest`) of the weights that it holds, empty where it cannot tell.
        """

    async def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
        """Take one bucket and verify its checksum; `sources` has one entry, or one for each process."""

    async def pull(self, url: str, version: int) -> None:
        """Fetch what differs of the version stored at `url` and verify it."""

    async def commit(self, version: int) -> None:
        """Adopt the new weights as `version` and resume."""

    async def quarantine(self) -> None:
        """End the requests in flight and take no others until the next `begin` and `commit`."""

    async def close(self) -> None:
        """Close connections; the next call opens them again."""


@dataclass(slots=True)
class SyncReport:
    """What one sync did. `quarantined` maps a receiver that failed to the reason."""

    version: int
    committed: list[str] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)
    nbytes: int = 0
    """Bytes of the tensors sent."""
    payload_nbytes: int = 0
    """Bytes that travelled to each receiver, after compression."""
    skipped_nbytes: int = 0
    """Bytes of tensors that receivers held already."""
    buckets: int = 0
    staging_nbytes: int = 0
    """Largest memory that buckets on their way took, in the sender."""
    seconds: float = 0.0
    steps: int = 1
    """Receivers that were called one after the other, in the longest such row."""

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes moved to each receiver per second of the whole transaction."""
        return self.nbytes / 1e9 / max(self.seconds, 1e-9)

    def metrics(self) -> dict[str, float]:
        """The report as `weight_sync/` metrics."""
        values = {
            "seconds": self.seconds,
            "bytes": self.nbytes,
            "payload_bytes": self.payload_nbytes,
            "skipped_bytes": self.skipped_nbytes,
            "buckets": self.buckets,
            "staging_bytes": self.staging_nbytes,
            "gigabytes_per_second": self.gigabytes_per_second,
            "quarantined": len(self.quarantined),
            "version": self.version,
        }
        return {f"weight_sync/{name}": float(value) for name, value in values.items()}
