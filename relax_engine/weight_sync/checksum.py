"""Checksums of tensors that run where the tensors live.

Sender and receiver of a weight bucket compute them independently; equal sums mean equal bytes in equal order up
to a 2**-64 accident. They guard against corruption, not against an adversary. There are two algorithms, and a
checksum names its own: `xxh3` (XXH3-64; faster than memory, so a copy that is hashed on the way costs no more
than the copy) for tensors in host memory, `words` (position-weighted sum of 32-bit words) for a device that
would have to copy everything to the host first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch
import xxhash
from torch import Tensor

_CHUNK = 1 << 22
_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_CACHED = 1 << 19
"""Bytes that are still in a core's own cache when they are copied after they were hashed."""


def algorithm_for(device: torch.device) -> str:
    """The algorithm that suits tensors on `device`."""
    return "xxh3" if device.type == "cpu" else "words"


def tensor_checksum(tensors: Iterable[Tensor], algorithm: str = "xxh3") -> str:
    """Checksum of `tensors` in order: the algorithm, a colon and 16 hexadecimal digits. Any dtype and shape."""
    return combine(((tensor_digest(tensor, algorithm), tensor.nbytes) for tensor in tensors), algorithm)


def combine(digests: Iterable[tuple[int, int]], algorithm: str) -> str:
    """Checksum of consecutive tensors from the digest and the bytes of each.

    The length of every tensor enters the sum, so moved boundaries are detected too.
    """
    total = 0
    for digest, nbytes in digests:
        total = (total * _MULTIPLIER + nbytes + 1) & _MASK
        total = (total * _MULTIPLIER + digest) & _MASK
    return f"{algorithm}:{total:016x}"


def algorithm_of(checksum: str) -> str:
    """The algorithm that made `checksum`.

    Raises:
        ValueError: no algorithm of this module.
    """
    name = checksum.partition(":")[0]
    if name not in ("xxh3", "words"):
        raise ValueError(f"checksum {checksum!r} is of no known algorithm; known: xxh3, words")
    return name


def tensor_digest(tensor: Tensor, algorithm: str) -> int:
    """64-bit digest of the bytes of one tensor."""
    data = byte_view(tensor)
    if algorithm == "words":
        return _words_sum(data)
    return xxhash.xxh3_64_intdigest(data.cpu().numpy().data)


def copy_with_digest(target: Tensor, source: Tensor, algorithm: str) -> int:
    """Copy the bytes of `source` into `target` (uint8, contiguous, as many bytes) and return their digest."""
    data = byte_view(source)
    if algorithm == "words" or target.device.type != "cpu" or data.device.type != "cpu":
        target.copy_(data)
        return tensor_digest(target, algorithm)
    state = xxhash.xxh3_64()
    origin, copy = data.numpy(), target.numpy()
    for start in range(0, origin.size, _CACHED):
        part = origin[start : start + _CACHED]
        state.update(part.data)
        np.copyto(copy[start : start + _CACHED], part)
    return state.intdigest()


def base_digest(held: Mapping[str, int]) -> str:
    """One name for a whole set of weights, from the digest of each tensor; empty for no weights."""
    if not held:
        return ""
    lines = "".join(f"{name} {held[name]:016x}\n" for name in sorted(held))
    return hashlib.sha256(lines.encode()).hexdigest()[:32]


def byte_view(tensor: Tensor) -> Tensor:
    """The bytes of `tensor` in order, uint8 `[nbytes]`; a copy only where it is not contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def aligned(data: Tensor, itemsize: int) -> Tensor:
    """`data` (uint8, contiguous) where it can be viewed as items of `itemsize` bytes, else a copy that can.

    A view into a larger buffer may start anywhere in it, an empty one too.
    """
    return data.clone() if data.storage_offset() % itemsize or data.data_ptr() % itemsize else data


def _words_sum(data: Tensor) -> int:
    """Position-weighted sum of the 32-bit words of `data` (uint8), modulo 2**64."""
    tail = data.numel() % 4
    words = aligned(data[: data.numel() - tail], 4).view(torch.int32)
    total = 0
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK].to(torch.int64)
        position = torch.arange(start + 1, start + 1 + chunk.numel(), dtype=torch.int64, device=data.device)
        total = (total + int((chunk * position).sum())) & _MASK
    for offset, value in enumerate(data[data.numel() - tail :].tolist()):
        total = (total * _MULTIPLIER + value + offset + 1) & _MASK
    return total
