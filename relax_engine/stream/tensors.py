"""Columns as torch tensors."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from relax_engine.stream.columns import Column

if TYPE_CHECKING:
    import torch


def as_tensor(column: Column) -> torch.Tensor:
    """The column's values, `[total, *tail]` (ragged) or `[rows, *tail]`, as a tensor on the same memory.

    Columns fetched from the stream lie in shared memory and are read-only: other processes read
    the same bytes. The tensor must not be written in place; `clone()` it first, or move it to a device.
    torch warns about every read-only array; this helper keeps that one warning quiet.
    """
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(column.values)
