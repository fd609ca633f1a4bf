"""Where the tensors of a weight update come from: a request's bucket, shared memory, a directory, a weight store.

What does not live here: when they are adopted (`weight_update.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from relax_engine.backends.engines.local.arch import Architecture, load_architecture
from relax_engine.backends.engines.local.errors import ModelError
from relax_engine.backends.engines.local.weights import check_tensor, expected_shapes, read_weights
from relax_engine.weight_sync.arrival import take_copy
from relax_engine.weight_sync.buffers import BufferPool
from relax_engine.weight_sync.messages import BucketMeta, TensorMeta

Arrived = tuple[list[tuple[str, Tensor]], dict[str, int] | None]
"""Named tensors and the digest of each, None where the sender gave no checksum."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """The description of a bucket, as a request has it. An empty checksum is not verified."""

    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[Sequence[int]]
    checksum: str
    encoded_nbytes: int | None

    def meta(self) -> BucketMeta:
        """The description, checked.

        Raises:
            ModelError: lists of different lengths, or a dtype that weights do not have.
        """
        if not len(self.names) == len(self.dtypes) == len(self.shapes) or not self.names:
            raise ModelError(
                "names, dtypes and shapes must have one entry per tensor, got "
                f"{len(self.names)}, {len(self.dtypes)} and {len(self.shapes)}"
            )
        tensors = (
            TensorMeta(name, _dtype_name(dtype), tuple(shape))
            for name, dtype, shape in zip(self.names, self.dtypes, self.shapes, strict=True)
        )
        return BucketMeta(tuple(tensors), self.checksum, self.encoded_nbytes)


def copy_shared(named: list[tuple[str, Tensor]], checksum: str, arch: Architecture, buffers: BufferPool) -> Arrived:
    """Own copies of tensors in shared memory.

    Raises:
        ModelError: one is not of this model.
        ValueError, DamagedBucketError: there are none, or they are not what was sent.
    """
    if not named:
        raise ValueError("serialized_named_tensors has no tensors")
    shapes = expected_shapes(arch)
    for name, tensor in named:
        check_tensor(arch, shapes, name, tuple(tensor.shape))
    if not checksum:
        return [(name, tensor.clone()) for name, tensor in named], None
    metas = tuple(TensorMeta(name, _dtype_name(str(tensor.dtype)), tuple(tensor.shape)) for name, tensor in named)
    return take_copy(BucketMeta(metas, checksum), named, buffers)


def read_model(place: str, arch: Architecture, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a model directory.

    Raises:
        ModelError: it is not one, or of another architecture.
    """
    directory = Path(place)
    found = load_architecture(directory)
    if found.name != arch.name:
        raise ModelError(f"{directory} is a {found.name}, the engine serves {arch.name}")
    return read_weights(arch, directory, dtype)


def read_stored(place: str, held: Mapping[str, int], arch: Architecture) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The tensors of a stored version that differ from what is `held`, and the digests of all.

    Raises:
        ModelError: they are not those of this model.
        WeightStoreError: they cannot be read.
    """
    from relax_engine.weight_sync.store import read_version

    manifest, tensors = read_version(place, held)
    shapes = expected_shapes(arch)
    missing = sorted(shapes.keys() - manifest.digests.keys())
    if missing:
        raise ModelError(f"{place} lacks {len(missing)} tensors of the model, first {missing[0]!r}")
    kept = {name: tensor for name, tensor in tensors if check_tensor(arch, shapes, name, tuple(tensor.shape))}
    return kept, manifest.digests


def _dtype_name(name: str) -> str:
    """`float32` of `float32` or `torch.float32`.

    Raises:
        ModelError: not a floating-point dtype of torch.
    """
    short = str(name).removeprefix("torch.")
    dtype = getattr(torch, short, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ModelError(f"dtype {name!r} is not a floating-point dtype")
    return short
