"""Attention of a decoding step: every row's newest token over its cached columns.

Two ways to compute the same sums. `MatmulAttention` is two batched matrix products; it serves every device
and dtype. `BagAttention` is for float32 on a CPU, where products with `group` (two to eight) rows spend
most of their time in call overhead and cache misses: both products are weighted sums of table rows, which is
what `embedding_bag` computes, with a vectorised, prefetching kernel. `docs/design/engine.md` has the
measurements.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_engine.backends.engines.local.kv_cache import KVCache

BAG_BLOCK = 80


def uses_bags(dtype: torch.dtype, device: torch.device) -> bool:
    """True where `BagAttention` is the faster way."""
    return dtype == torch.float32 and device.type == "cpu"


def key_block(dtype: torch.dtype, device: torch.device) -> int | None:
    """Columns per block of the key cache: bags want narrow tables, products one block (None)."""
    return BAG_BLOCK if uses_bags(dtype, device) else None


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Rows whose first columns are copies: row r's columns below `until[r]` equal those of row `leader[r]`.

    Reading the leader's copy for all of them keeps a group's prompt in the processor's cache.
    """

    leader: Tensor
    until: Tensor

    @classmethod
    def of(cls, keys: Sequence[Hashable], until: Sequence[int]) -> SharedPrefixes:
        """Rows of equal key share; `until` per row, as above."""
        first: dict[Hashable, int] = {}
        leader = [first.setdefault(key, row) for row, key in enumerate(keys)]
        return cls(torch.tensor(leader, dtype=torch.int32), torch.tensor(until, dtype=torch.int32))

    def rows(self, columns: Tensor) -> Tensor:
        """The row to read for each of `columns` int32 `[n]`: int32 `[rows, n]`."""
        own = torch.arange(self.leader.shape[0], dtype=torch.int32)
        return torch.where(columns < self.until[:, None], self.leader[:, None], own[:, None])


class StepWriter:
    """Stores the newest keys and values of the first `count` rows at the cursor; prepared for columns `[low, high)`."""

    def __init__(self, cache: KVCache, count: int, high: int) -> None:
        self._cache, self._block = cache, (high - 1) // cache.block
        self._base = self._block * cache.block
        self._keys = [blocks[self._block, :count] for blocks in cache.keys]
        self._values = [values[:count] for values in cache.values]

    def __call__(self, layer: int, k: Tensor, v: Tensor) -> None:
        cursor = self._cache.cursor
        self._keys[layer].select(3, cursor - self._base).copy_(k)
        self._values[layer].select(2, cursor).copy_(v)


class MatmulAttention:
    """Scores and sums as batched matrix products over columns `[low, high)` of the first rows."""

    def __init__(self, cache: KVCache, shared: SharedPrefixes, low: int, high: int) -> None:
        count = shared.leader.shape[0]
        kv, dim, group = cache.arch.num_kv_heads, cache.arch.head_dim, cache.arch.group_size
        self._write = StepWriter(cache, count, high)
        self._keys = [blocks[0, :count].view(count * kv, dim, -1)[:, :, low:high] for blocks in cache.keys]
        self._values = [values[:count].view(count * kv, -1, dim)[:, low:high] for values in cache.values]
        self._bias = cache.bias[: count * kv, :, low:high].expand(count * kv, group, high - low)
        self._scores = torch.empty(count * kv, group, high - low, dtype=cache.dtype, device=cache.device)
        self._attended = torch.empty(count * kv, group, dim, dtype=cache.dtype, device=cache.device)
        self._rows = self._attended.view(count, kv * group * dim)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._write(layer, k, v)
        scores = self._scores
        torch.baddbmm(self._bias, q, self._keys[layer], out=scores)
        torch._softmax(scores, -1, False, out=scores)
        torch.bmm(scores, self._values[layer], out=self._attended)
        return self._rows


class BagAttention:
    """Scores and sums as weighted bags of table rows, same arguments as `MatmulAttention`.

    Scores of one query are the sum over `dim` of its elements times the rows `K^T[dim, columns]` of its key/value
    head: a bag of `dim` rows. The output is the sum over columns of probabilities times the rows
    `V[column, dim]`: a bag of `high - low` rows.
    """

    def __init__(self, cache: KVCache, shared: SharedPrefixes, low: int, high: int) -> None:
        kv, dim, group = cache.arch.num_kv_heads, cache.arch.head_dim, cache.arch.group_size
        count = shared.leader.shape[0]
        heads, width, size = count * kv, cache.block, high - low
        self._write = StepWriter(cache, count, high)
        self._shape = (count, kv * group * dim)
        self._q = torch.empty(heads, group, dim)
        self._weights = self._q.view(-1)
        head = torch.arange(kv, dtype=torch.int32)[:, None]
        element = torch.arange(dim, dtype=torch.int32)
        self._key_bags = torch.arange(heads * group, dtype=torch.int32) * dim
        column = torch.arange(low, high, dtype=torch.int32)
        value_index = (shared.rows(column)[:, None] * kv + head) * cache.columns + column
        self._value_index = value_index.view(heads, 1, size).expand(heads, group, size).reshape(-1)
        self._value_bags = torch.arange(heads * group, dtype=torch.int32) * size
        self._values = [values[:count].view(-1, dim) for values in cache.values]
        self._scores = torch.empty(heads, group, size)
        self._probs = self._scores.view(-1)
        bias = cache.bias[:heads].expand(heads, group, cache.columns)
        self._parts = []
        for block in range(low // width, (high - 1) // width + 1):
            first, last = max(low, block * width), min(high, (block + 1) * width)
            tables = [blocks[block, :count].view(-1, width) for blocks in cache.keys]
            inside = slice(first - block * width, last - block * width)
            target = self._scores[:, :, first - low : last - low]
            # A block is read from the leader when its last column is shared.
            rows = shared.rows(torch.tensor([last - 1], dtype=torch.int32))
            index = ((rows * kv + head.T)[:, :, None] * dim + element).view(heads, 1, dim)
            index = index.expand(heads, group, dim).reshape(-1)
            self._parts.append((tables, index, inside, bias[:, :, first:last], target))
        self._scored = (heads, group, width)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._write(layer, k, v)
        self._q.copy_(q)
        for tables, index, inside, bias, target in self._parts:
            scores = torch.embedding_bag(tables[layer], index, self._key_bags, False, 0, False, self._weights, False)[
                0
            ].view(self._scored)
            torch.add(scores[:, :, inside], bias, out=target)
        torch._softmax(self._scores, -1, False, out=self._scores)
        return torch.embedding_bag(
            self._values[layer], self._value_index, self._value_bags, False, 0, False, self._probs, False
        )[0].view(self._shape)
