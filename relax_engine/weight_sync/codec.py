"""Compressing the bytes of a bucket for links that are slower than a core compresses.

Floating-point values compress badly as they lie: exponents, which repeat, alternate with mantissas, which do not.
So bytes of equal significance are put side by side first. Host memory only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import pyarrow as pa

CODEC = "zstd"
_LEVEL = 1


def encode(flat: Tensor, itemsize: int) -> Tensor:
    """`flat` (uint8) compressed; `itemsize` is the bytes of one value, 1 for a mixture."""
    planes = flat.view(-1, itemsize).t().contiguous().view(-1)
    return _tensor(_codec().compress(planes.numpy()))


def decode(payload: Tensor, itemsize: int, nbytes: int) -> Tensor:
    """What `encode` was given, `nbytes` of it.

    Raises:
        ValueError: `payload` is not that.
    """
    try:
        planes = _tensor(_codec().decompress(payload.numpy(), decompressed_size=nbytes))
    except OSError as error:
        raise ValueError(f"{payload.numel()} bytes are no {CODEC} of {nbytes} bytes: {error}") from error
    return planes.view(itemsize, -1).t().contiguous().view(-1)


def _codec() -> pa.Codec:
    import pyarrow

    return pyarrow.Codec(CODEC, compression_level=_LEVEL)


def _tensor(buffer: pa.Buffer) -> Tensor:
    return torch.frombuffer(bytearray(buffer), dtype=torch.uint8)
