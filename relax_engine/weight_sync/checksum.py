"""A position-sensitive checksum of tensors that runs where the tensors live.

Sender and receiver of a weight bucket compute it independently; equal sums mean equal bytes in
equal order up to a 2**-64 accident. It is a guard against corruption, not against an adversary.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_CHUNK = 1 << 22
_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def tensor_checksum(tensors: Iterable[Tensor]) -> str:
    """Checksum of the concatenated bytes of `tensors`, in order, as 16 hexadecimal digits.

    Each 32-bit word is weighted by its position, so swapped values are detected, and the byte
    length of every tensor enters the sum, so moved boundaries are too. Any dtype and shape.
    """
    total = 0
    for tensor in tensors:
        data = tensor.detach().contiguous().view(-1)
        total = (total * _MULTIPLIER + data.numel() * data.element_size() + 1) & _MASK
        total = (total * _MULTIPLIER + _bytes_sum(data.view(torch.uint8))) & _MASK
    return f"{total:016x}"


def aligned(data: Tensor, itemsize: int) -> Tensor:
    """`data` (uint8, contiguous) where it can be viewed as items of `itemsize` bytes, else a copy that can.

    A view into a larger buffer may start anywhere in it, an empty one too.
    """
    return data.clone() if data.storage_offset() % itemsize or data.data_ptr() % itemsize else data


def _bytes_sum(data: Tensor) -> int:
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
