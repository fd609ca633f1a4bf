"""Memory for arriving buckets that is used again, so that a sync does not begin with page faults.

Fresh memory costs as much to touch for the first time as a bucket costs to copy.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

_SMALL = 1 << 20
_UNUSED = 2
"""References to an array that nobody uses: the pool's list, and the argument of the question itself."""


class BufferPool:
    """Buffers that become free when the last tensor in them goes.

    A buffer is a numpy array (which numpy asks huge pages for), and every tensor in it holds a reference to it.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def take(self, nbytes: int) -> Tensor:
        """`nbytes` bytes (uint8) that nobody else uses, in a buffer at most twice as large, or small."""
        free = self._free()
        fitting = [array for array in free if nbytes <= array.size <= max(2 * nbytes, _SMALL)]
        if fitting:
            return torch.from_numpy(min(fitting, key=lambda array: array.size))[:nbytes]
        self._drop([array for array in free if array.size < nbytes])
        array = np.empty(nbytes, dtype=np.uint8)
        self._arrays.append(array)
        return torch.from_numpy(array)

    def trim(self) -> None:
        """Give all free buffers back."""
        self._drop(self._free())

    def _free(self) -> list[np.ndarray]:
        return [self._arrays[i] for i in range(len(self._arrays)) if sys.getrefcount(self._arrays[i]) == _UNUSED]

    def _drop(self, arrays: list[np.ndarray]) -> None:
        gone = set(map(id, arrays))
        self._arrays = [array for array in self._arrays if id(array) not in gone]

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, used or not."""
        return sum(array.size for array in self._arrays)
