"""What a receiver does with a bucket: decode, take apart, verify. The same in engines and in training ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relax_engine.errors import RelaxError
from relax_engine.weight_sync.buckets import unflatten
from relax_engine.weight_sync.buffers import BufferPool
from relax_engine.weight_sync.checksum import algorithm_of, base_digest, combine, copy_with_digest, tensor_digest
from relax_engine.weight_sync.codec import decode
from relax_engine.weight_sync.messages import BucketMeta


class DamagedBucketError(RelaxError):
    """A bucket is not what its sender described."""


@dataclass(slots=True)
class HeldWeights:
    """Digests of the weights that a receiver serves, so that a sender need not send them again.

    Staged digests become held ones by `adopt`; what came without a checksum makes all of them unknown.
    """

    digests: dict[str, int] = field(default_factory=dict)
    staged: dict[str, int] = field(default_factory=dict)
    staged_unknown: bool = False

    @property
    def base(self) -> str:
        """Digest over everything held, empty where unknown."""
        return base_digest(self.digests)

    def stage(self, digests: dict[str, int] | None) -> None:
        """Remember what one bucket had; None when its checksum did not come."""
        self.staged_unknown |= digests is None
        self.staged |= digests or {}

    def drop_staged(self) -> None:
        """Forget what an unfinished transaction had."""
        self.staged, self.staged_unknown = {}, False

    def adopt(self) -> None:
        """What was staged is served now."""
        self.digests = {} if self.staged_unknown else self.digests | self.staged
        self.drop_staged()

    def replace(self, digests: dict[str, int]) -> None:
        """The weights came from elsewhere; `digests` is empty where unknown."""
        self.digests = dict(digests)
        self.drop_staged()


def arrival_buffer(nbytes: int, backend: str, buffers: BufferPool) -> Tensor:
    """Memory for one broadcast: on the device for NCCL, else on the host, from `buffers`."""
    if backend != "nccl":
        return buffers.take(nbytes)
    return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", torch.cuda.current_device()))


def unpack(meta: BucketMeta, payload: Tensor) -> tuple[list[tuple[str, Tensor]], dict[str, int]]:
    """Named tensors of a bucket that arrived as `payload` (uint8), and the digest of each.

    Raises:
        DamagedBucketError: the bytes are not those that were sent.
    """
    try:
        flat = payload if meta.encoded_nbytes is None else decode(payload.cpu(), meta.itemsize, meta.nbytes)
        named = unflatten(meta, flat)
    except ValueError as error:
        raise DamagedBucketError(f"{_describe(meta)}: {error}") from error
    return named, verify(meta, named)


def verify(meta: BucketMeta, named: Sequence[tuple[str, Tensor]]) -> dict[str, int]:
    """Compare tensors with the description of their bucket; returns the digest of each.

    Raises:
        DamagedBucketError: they are not those that were sent.
    """
    _compare_shapes(meta, named)
    algorithm = _algorithm(meta)
    digests = {name: tensor_digest(tensor, algorithm) for name, tensor in named}
    _compare(meta, list(digests.values()), algorithm)
    return digests


def take_copy(
    meta: BucketMeta, named: Sequence[tuple[str, Tensor]], buffers: BufferPool
) -> tuple[list[tuple[str, Tensor]], dict[str, int]]:
    """Own copies of tensors in memory that the sender uses again, and the digest of each.

    Raises:
        DamagedBucketError: the tensors are not those that were sent.
    """
    _compare_shapes(meta, named)
    algorithm = _algorithm(meta)
    flat = buffers.take(meta.nbytes)
    digests, start = {}, 0
    for name, tensor in named:
        digests[name] = copy_with_digest(flat[start : start + tensor.nbytes], tensor, algorithm)
        start += tensor.nbytes
    _compare(meta, list(digests.values()), algorithm)
    return unflatten(meta, flat), digests


def _algorithm(meta: BucketMeta) -> str:
    try:
        return algorithm_of(meta.checksum)
    except ValueError as error:
        raise DamagedBucketError(f"{_describe(meta)}: {error}") from error


def _compare_shapes(meta: BucketMeta, named: Sequence[tuple[str, Tensor]]) -> None:
    arrived = [(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in named]
    if arrived != [(tensor.name, tensor.dtype, tensor.shape) for tensor in meta.tensors]:
        raise DamagedBucketError(f"{_describe(meta)}: its tensors are not those that it describes")


def _compare(meta: BucketMeta, digests: Sequence[int], algorithm: str) -> None:
    pairs = ((digest, tensor.nbytes) for digest, tensor in zip(digests, meta.tensors, strict=True))
    actual = combine(pairs, algorithm)
    if actual != meta.checksum:
        raise DamagedBucketError(
            f"checksum of {_describe(meta)} is {actual}, the sender says {meta.checksum}: "
            "the update is dropped, the old weights stay"
        )


def _describe(meta: BucketMeta) -> str:
    return f"the bucket {meta.tensors[0].name!r}..{meta.tensors[-1].name!r}"
