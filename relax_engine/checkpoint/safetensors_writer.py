"""Writing safetensors files from a stream of tensors, in memory of one block.

The format (https://github.com/huggingface/safetensors#format): eight bytes little-endian header length, a JSON
header of names, types, shapes and byte ranges, then the raw little-endian data. The header is known from the
plan before the first tensor is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_BLOCK_BYTES = 8 << 20
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to come: its name, shape, and the type it is to be written in."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes it will take in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def plan_shards(tensors: list[PlannedTensor], max_bytes: int) -> list[list[PlannedTensor]]:
    """Cut the list, in order, into files of at most ``max_bytes`` of data (one tensor may exceed that alone)."""
    shards: list[list[PlannedTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards


def write_safetensors(
    path: Path, plan: list[PlannedTensor], tensors: Iterator[tuple[str, Tensor]], advance: Callable[[int], None]
) -> None:
    """Write the next ``len(plan)`` tensors of the stream, which must come in the plan's order, converting types.

    Args:
        advance: called with the number of bytes just written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for planned in plan:
        header[planned.name] = {
            "dtype": _TYPES[planned.dtype],
            "shape": list(planned.shape),
            "data_offsets": [offset, offset + planned.nbytes],
        }
        offset += planned.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for planned in plan:
            name, tensor = next(tensors)
            assert (name, tuple(tensor.shape)) == (planned.name, planned.shape)
            for block in _blocks(tensor):
                data = block.to(planned.dtype).contiguous().view(torch.uint8).numpy().data
                file.write(data)
                advance(data.nbytes)


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Slices along the first dimension of about ``_BLOCK_BYTES``."""
    row_bytes = max(1, tensor.nbytes // max(1, tensor.shape[0]))
    yield from tensor.split(max(1, _BLOCK_BYTES // row_bytes))
