"""Matrix products with fixed weights.

`PackedLinear` is for float32 on a CPU: oneDNN with the weight reordered once, which uses the widest vector
units of the machine where the BLAS behind `torch.mm` may not. `MatmulLinear` serves every other device and dtype.
oneDNN prepares code per row count, so the engine keeps to few of them: multiples of `ROW_STEP`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

ROW_STEP = 8
_PACKED_FOR_ROWS = 64


class Linear(Protocol):
    """`x @ weight.T + bias` in new memory; x `[rows, in]`."""

    def __call__(self, x: Tensor) -> Tensor: ...


class MatmulLinear:
    """A product by `torch.mm`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._matrix, self._bias = weight.contiguous().t(), bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self._matrix) if self._bias is None else torch.addmm(self._bias, x, self._matrix)


class PackedLinear:
    """A product by oneDNN over a reordered weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR_ROWS)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self._product(x, self._packed, self._bias, "none", [], "")
        return result


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The faster product for the weight's device and dtype; weight `[out, in]`, bias `[out]`."""
    packs = weight.dtype == torch.float32 and weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return PackedLinear(weight, bias) if packs else MatmulLinear(weight, bias)


def round_rows(rows: int, step: int = ROW_STEP) -> int:
    """`rows` rounded up to a multiple of `step`."""
    return -(-rows // step) * step
