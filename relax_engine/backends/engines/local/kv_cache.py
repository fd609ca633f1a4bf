"""The key/value cache: rows of columns, aligned at the newest token.

Every running request owns one row; column `cursor` is where all of them write next, so a step's write
is one strided copy per layer instead of a scatter. A row's tokens occupy `[start, cursor)`.
What lives here: the pools, their layout, moving rows. What does not: who owns a row (`scheduler.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relax_engine.backends.engines.local.arch import Architecture


class KVCache:
    """Preallocated pools of `total_tokens` tokens per layer, viewed as `rows` x `columns`.

    Keys are stored transposed in blocks of columns, `[rows, kv, blocks, dim, block]`, so that a product with a query
    runs through memory in order; values as `[rows, kv, columns, dim]`.
    """

    def __init__(
        self,
        arch: Architecture,
        total_tokens: int,
        *,
        block: int | None,
        dtype: torch.dtype,
        device: torch.device,
        routed: int = 0,
    ) -> None:
        """`block` divides 16, or None makes one block of all columns; the size is rounded up to hold one row of
        `total_tokens`. `routed` experts were chosen for each token, in all layers, and are kept."""
        self._routed = routed
        self.arch, self.dtype, self.device = arch, dtype, device
        self._fixed_block, self.block = block, block or 0
        self.total_tokens = self.padded_columns(total_tokens)
        self._elements = self.total_tokens * arch.num_kv_heads * arch.head_dim
        self._pools: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.rows = self.columns = 0
        self.cursor = 0
        self.allocate()

    @staticmethod
    def padded_columns(columns: int) -> int:
        """The smallest row length >= `columns` that is 16 modulo 32: powers of two collide in cache sets."""
        return (max(columns, 16) + 15) // 32 * 32 + 16

    @property
    def allocated(self) -> bool:
        """False after `release`."""
        return bool(self._pools)

    def allocate(self) -> None:
        """Take the memory; on a CPU pages become resident when first written."""
        for _ in range(2 * self.arch.spec.num_layers):
            if self.device.type == "cpu":
                size = self._elements * self.dtype.itemsize
                self._pools.append(torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(self.dtype))
            else:
                self._pools.append(torch.zeros(self._elements, dtype=self.dtype, device=self.device))

    def release(self) -> None:
        """Give the memory back; nothing may be running."""
        self._pools, self.keys, self.values = [], [], []
        self.rows = self.columns = 0

    def clear(self) -> None:
        """Overwrite stored values, so that a NaN left by broken weights cannot leak through a zero probability."""
        for pool in self._pools:
            pool.zero_()

    def layout(self, rows: int, columns: int) -> None:
        """View the pools as `rows` x `columns`; the contents are lost (see `relayout`)."""
        kv, dim = self.arch.num_kv_heads, self.arch.head_dim
        if rows * columns > self.total_tokens:
            raise ValueError(f"{rows} rows x {columns} columns exceed the cache of {self.total_tokens} tokens")
        used = rows * columns * kv * dim
        layers = self.arch.spec.num_layers
        self.block = self._fixed_block or columns
        shape = (rows, kv, columns // self.block, dim, self.block)
        self.keys = [self._pools[i][:used].view(shape) for i in range(layers)]
        self.values = [self._pools[layers + i][:used].view(rows, kv, columns, dim) for i in range(layers)]
        self.rows, self.columns = rows, columns
        self.out_tokens = torch.zeros(rows, columns, dtype=torch.int64, device=self.device)
        self.out_log_probs = torch.zeros(rows, columns, dtype=torch.float32, device=self.device)
        self.out_experts = torch.zeros(rows, columns, self._routed, dtype=torch.int16, device=self.device)

    def relayout(self, rows: int, columns: int, active: int, low: int, target: int) -> int:
        """Move the first `active` rows' columns `[low, cursor)` to `[target, ...)` of a new layout.

        Returns the shift that was added to every column.
        """
        high, shift = self.cursor, target - low
        keys = [self._key_columns(layer, active, low, high) for layer in range(self.arch.spec.num_layers)]
        values = [v[:active, :, low:high].clone() for v in self.values]
        tokens, log_probs = self.out_tokens[:active, low:high].clone(), self.out_log_probs[:active, low:high].clone()
        experts = self.out_experts[:active, low:high].clone()
        self.layout(rows, columns)
        span = slice(low + shift, high + shift)
        for index in range(self.arch.spec.num_layers):
            self._store_keys(index, slice(0, active), span.start, keys[index])
            self.values[index][:active, :, span] = values[index]
        self.out_tokens[:active, span], self.out_log_probs[:active, span] = tokens, log_probs
        self.out_experts[:active, span] = experts
        self.cursor = high + shift
        return shift

    def _key_columns(self, layer: int, count: int, low: int, high: int) -> Tensor:
        """A copy of the keys of the first `count` rows, columns `[low, high)`: `[count, kv, dim, high - low]`."""
        first, last = low // self.block, (high - 1) // self.block + 1
        columns = self.keys[layer][:count, :, first:last].transpose(2, 3).flatten(3)
        return columns[..., low - first * self.block : high - first * self.block].clone()

    def _store_keys(self, layer: int, rows: slice, low: int, keys: Tensor) -> None:
        """Write `keys` `[rows, kv, dim, n]` to columns `[low, low + n)`."""
        high = low + keys.shape[-1]
        for block in range(low // self.block, (high - 1) // self.block + 1):
            base = block * self.block
            first, last = max(low, base), min(high, base + self.block)
            self.keys[layer][rows, :, block, :, first - base : last - base] = keys[..., first - low : last - low]

    def move_rows(self, source: Sequence[int], target: Sequence[int], low: int) -> None:
        """Copy columns `[low, cursor)` of rows `source` to rows `target` (disjoint)."""
        src = torch.tensor(source, device=self.device)
        dst = torch.tensor(target, device=self.device)
        span = slice(low, self.cursor)
        for keys, values in zip(self.keys, self.values, strict=True):
            used = slice(low // self.block, (self.cursor - 1) // self.block + 1)
            keys[dst, :, used] = keys[src, :, used]
            values[dst, :, span] = values[src, :, span]
        self.out_tokens[dst, span] = self.out_tokens[src, span]
        self.out_log_probs[dst, span] = self.out_log_probs[src, span]
        self.out_experts[dst, span] = self.out_experts[src, span]

    def write_prompts(self, layer: int, first_row: int, owner: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store prompts of one layer in rows `first_row...`, ending at the cursor.

        `owner` int64 `[rows]` says which prompt each row has; keys `[prompts, kv, dim, length]`, values
        `[prompts, kv, length, dim]`, both padded on the left.
        """
        rows = slice(first_row, first_row + owner.shape[0])
        span = slice(self.cursor - keys.shape[-1], self.cursor)
        self._store_keys(layer, rows, span.start, keys.index_select(0, owner))
        self.values[layer][rows, :, span] = values.index_select(0, owner)
