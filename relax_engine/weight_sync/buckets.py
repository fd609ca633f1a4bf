"""Cutting a stream of named tensors into buckets of bounded size, in memory that is used again.

A bucket is the unit of transfer: one request, one broadcast, one checksum. What does not live here: how a bucket
travels (`transports`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_engine.weight_sync.checksum import algorithm_for, aligned, combine, copy_with_digest, tensor_digest
from relax_engine.weight_sync.messages import BucketMeta, TensorMeta

_FIRST_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """Packed tensors: their description, and their bytes in order as one uint8 tensor, a view of staging memory.

    `starts` has the offset of each tensor; where the packer aligns tensors, there are gaps between them.
    """

    meta: BucketMeta
    data: Tensor
    starts: tuple[int, ...]


class Staging:
    """The two buffers in which buckets are packed: one is filled while the other travels.

    A buffer grows until it holds `bucket_bytes`, or one larger tensor, and then stays. `allocate(nbytes)` makes one.
    """

    def __init__(self, bucket_bytes: int, allocate: Callable[[int], Tensor]) -> None:
        self.bucket_bytes = bucket_bytes
        self._allocate = allocate
        self._buffers: list[Tensor | None] = [None, None]
        self.peak_nbytes = 0
        """Most bytes that both buffers had together."""
        self.largest_nbytes = 0
        """Bytes of the largest tensor so far."""

    def swap(self) -> None:
        """Fill the other buffer from now on; what it held has arrived."""
        self._buffers.reverse()

    def room(self, used: int, more: int) -> Tensor:
        """The buffer being filled, with room for `more` bytes behind the first `used`, which stay."""
        buffer, needed = self._buffers[0], used + more
        if buffer is None or buffer.numel() < needed:
            doubled = max(_FIRST_NBYTES, 2 * (buffer.numel() if buffer is not None else 0))
            larger = self._allocate(max(needed, min(doubled, self.bucket_bytes)))
            if used and buffer is not None:
                larger[:used].copy_(buffer[:used])
            self._buffers[0] = buffer = larger
            self.peak_nbytes = max(self.peak_nbytes, sum(b.numel() for b in self._buffers if b is not None))
        return buffer


class Packer:
    """Packs named tensors into buckets, leaving out those that receivers hold.

    After the last bucket `digests` has the digest of every tensor and `skipped_nbytes` the bytes left out. A bucket
    is good until the second next one is asked for: then its memory is used again.
    """

    def __init__(self, staging: Staging, held: Mapping[str, int], *, alignment: int = 1) -> None:
        self.staging = staging
        self.held = held
        self.alignment = alignment
        self.digests: dict[str, int] = {}
        self.skipped_nbytes = 0

    def pack(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[Bucket]:
        """Consecutive tensors, up to `bucket_bytes` a bucket; a larger tensor makes a bucket of its own."""
        metas: list[TensorMeta] = []
        starts: list[int] = []
        used = 0
        algorithm = algorithm_for(self.staging.room(0, 0).device)
        for name, tensor in tensors:
            if self._is_held(name, tensor, algorithm):
                continue
            start, nbytes = -(-used // self.alignment) * self.alignment, tensor.nbytes
            if metas and start + nbytes > self.staging.bucket_bytes:
                yield self._bucket(metas, starts, used, algorithm)
                self.staging.swap()
                metas, starts, used, start = [], [], 0, 0
            target = self.staging.room(used, start - used + nbytes)[start : start + nbytes]
            self.staging.largest_nbytes = max(self.staging.largest_nbytes, nbytes)
            self.digests[name] = copy_with_digest(target, tensor, algorithm)
            metas.append(TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)))
            starts.append(start)
            used = start + nbytes
        if metas:
            yield self._bucket(metas, starts, used, algorithm)
            self.staging.swap()

    def _is_held(self, name: str, tensor: Tensor, algorithm: str) -> bool:
        if name not in self.held or tensor_digest(tensor, algorithm) != self.held[name]:
            return False
        self.digests[name] = self.held[name]
        self.skipped_nbytes += tensor.nbytes
        return True

    def _bucket(self, metas: Sequence[TensorMeta], starts: Sequence[int], used: int, algorithm: str) -> Bucket:
        checksum = combine(((self.digests[meta.name], meta.nbytes) for meta in metas), algorithm)
        return Bucket(BucketMeta(tuple(metas), checksum), self.staging.room(used, 0)[:used], tuple(starts))


def torch_dtype(name: str) -> torch.dtype:
    """The dtype called `name`.

    Raises:
        ValueError: no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown tensor dtype {name!r}")
    return dtype


def unflatten(meta: BucketMeta, flat: Tensor) -> list[tuple[str, Tensor]]:
    """The named tensors inside `flat` (uint8), as views where alignment allows.

    Raises:
        ValueError: `flat` has not the bytes that `meta` describes.
    """
    if meta.nbytes != flat.numel():
        raise ValueError(f"a bucket of {flat.numel()} bytes describes {meta.nbytes} bytes of tensors")
    named = []
    start = 0
    for tensor in meta.tensors:
        dtype = torch_dtype(tensor.dtype)
        data = flat[start : start + tensor.nbytes]
        named.append((tensor.name, aligned(data, dtype.itemsize).view(dtype).view(tensor.shape)))
        start += tensor.nbytes
    return named
