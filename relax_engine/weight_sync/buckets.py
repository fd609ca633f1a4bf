"""Cutting a stream of named tensors into buckets of bounded size.

A bucket is the unit of transfer: one request, one broadcast, one checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from relax_engine.weight_sync.checksum import aligned, tensor_checksum
from relax_engine.weight_sync.messages import BucketMeta, TensorMeta


def torch_dtype(name: str) -> torch.dtype:
    """The dtype called `name`.

    Raises:
        ValueError: no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown tensor dtype {name!r}")
    return dtype


def fill_buckets(tensors: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Consecutive tensors, up to `max_bytes` a bucket; a larger tensor makes a bucket of its own."""
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if bucket and size + nbytes > max_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += nbytes
    if bucket:
        yield bucket


def flatten(bucket: Sequence[tuple[str, Tensor]]) -> tuple[BucketMeta, Tensor]:
    """One uint8 tensor with the bytes of all tensors in order, and its description."""
    flat = torch.cat([tensor.detach().contiguous().view(-1).view(torch.uint8) for _, tensor in bucket])
    metas = tuple(
        TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in bucket
    )
    return BucketMeta(metas, tensor_checksum([flat])), flat


def unflatten(meta: BucketMeta, flat: Tensor) -> list[tuple[str, Tensor]]:
    """The named tensors inside `flat` (uint8), as views where alignment allows."""
    named = []
    start = 0
    for tensor in meta.tensors:
        dtype = torch_dtype(tensor.dtype)
        data = flat[start : start + tensor.nbytes]
        named.append((tensor.name, aligned(data, dtype.itemsize).view(dtype).view(tensor.shape)))
        start += tensor.nbytes
    if start != flat.numel():
        raise ValueError(f"a bucket of {flat.numel()} bytes describes {start} bytes of tensors")
    return named
