"""Selecting rows, with the sum over copies as its gradient.

What lives here: `RowGather`. What does not: which rows (`packing.py`, `sharing.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class RowGather:
    """`rows[index]` for `rows` of a fixed number, index int64 `[n]`.

    The gradient of a row is the sum over its copies in the order of the index, so that it is the same at every call, on
    every device; `index_select`'s own gradient adds copies in any order on a GPU.
    """

    def __init__(self, index: np.ndarray, size: int, device: torch.device) -> None:
        """`size` is the number of rows that `index` selects from."""
        order = np.argsort(index, kind="stable")
        counts = np.bincount(index, minlength=size)
        self._index, self._order = torch.from_numpy(index).to(device), torch.from_numpy(order).to(device)
        self._offsets = torch.from_numpy(np.cumsum(counts) - counts).to(device)

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows of any shape `[size, ...]` to `[n, ...]`."""
        result: Tensor = _Gather.apply(rows, self._index, self._order, self._offsets)
        return result


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, order: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(order, offsets)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        order, offsets = ctx.saved_tensors
        shape = (len(offsets), *grads[0].shape[1:])
        if len(order) == 0:
            return grads[0].new_zeros(shape), None, None, None
        flat = grads[0].reshape(len(order), -1)
        return F.embedding_bag(order, flat, offsets, mode="sum").view(shape), None, None, None
