"""Writing safetensors files from a stream of tensors, in memory of one block.

The format (https://github.com/huggingface/safetensors#format): eight bytes little-endian header length, a JSON
header of names, types, shapes and byte ranges, then the raw little-endian data. The header is known from the
plan before the first tensor is.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.checkpoint.files import Extent
from relax_engine.checkpoint.saved_tensor import bytes_of

_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float8_e4m3fn: "F8_E4M3"}
BLOCK_BYTES = 256 << 10
"""About how much is read, converted and written at a time: what a processor's cache holds."""
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
    path: Path,
    plan: list[PlannedTensor],
    tensors: Iterator[tuple[str, Iterable[Tensor | Extent]]],
    advance: Callable[[int], None],
) -> None:
    """Write the next ``len(plan)`` tensors of the stream, which must come in the plan's order, converting types.

    Args:
        tensors: name, and the tensor in parts along its first dimension; extents are of the planned type.
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
    with path.open("wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for planned in plan:
            name, parts = next(tensors)
            assert name == planned.name
            written = 0
            for part in parts:
                for count in (
                    _copied(file, part) if isinstance(part, Extent) else _written(file, part.to(planned.dtype))
                ):
                    written += count
                    advance(count)
            assert written == planned.nbytes, f"{name}: {written} bytes instead of {planned.nbytes}"


def _written(file: FileIO, part: Tensor) -> Iterator[int]:
    """Append a tensor; yields the number of bytes of each write."""
    data = bytes_of(part.contiguous())
    while data:
        count = file.write(data)
        data = data[count:]
        yield count


def _copied(file: FileIO, part: Extent) -> Iterator[int]:
    """Append bytes of another file without bringing them into this process."""
    offset, left = part.offset, part.nbytes
    while left:
        count = os.sendfile(file.fileno(), part.descriptor, offset, left)
        if not count:
            raise DamagedCheckpointError(f"a checkpoint file ends {left} bytes early, at byte {offset}")
        offset, left = offset + count, left - count
        yield count
