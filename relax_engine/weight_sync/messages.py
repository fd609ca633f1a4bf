"""What travels beside the weights: addresses, bucket descriptions, reports. Importable without torch."""

from __future__ import annotations

import math
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
    """What a receiver must know before the broadcast of one bucket."""

    tensors: tuple[TensorMeta, ...]
    checksum: str

    @property
    def nbytes(self) -> int:
        """Payload bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


class Receiver(Protocol):
    """One process that ends up with the weights. Every coroutine raises on failure."""

    @property
    def name(self) -> str:
        """Unique among the receivers; what reports call it."""

    def answered(self, error: BaseException) -> bool:
        """Whether `error` is what a living receiver answered, rather than its silence or death."""

    async def join(self, address: GroupAddress, rank: int) -> None:
        """Enter the update group as `rank`; returns when the group is complete."""

    async def leave(self, address: GroupAddress) -> None:
        """Leave the update group and drop what was received through it."""

    async def begin(self) -> None:
        """Stop using the weights (pause, retract) and open the transaction; drops one that is open."""

    async def receive(self, bucket: BucketMeta, address: GroupAddress) -> None:
        """Take part in one broadcast and verify its checksum."""

    async def commit(self, version: int) -> None:
        """Adopt the new weights as `version` and resume."""


@dataclass(slots=True)
class SyncReport:
    """What one sync did. `quarantined` maps a receiver that failed to the reason."""

    version: int
    committed: list[str] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)
    nbytes: int = 0
    buckets: int = 0
    seconds: float = 0.0

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes moved to each receiver per second of the whole transaction."""
        return self.nbytes / 1e9 / max(self.seconds, 1e-9)
