"""The layers of a decoding step in tensor operations, which serve every device and dtype.

What lives here: `Layers`, what a decoding plan calls once per step, and attention of every row's newest token over
its cached columns as two batched products. What does not: the compiled form for float32 on a CPU (`compiled.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from relax_engine.backends.engines.local.decoder import Arena, Decoder, Workspace
from relax_engine.backends.engines.local.kv_cache import KVCache
from relax_engine.backends.engines.local.request import Request

NEGATIVE = float("-inf")


class Layers(Protocol):
    """Logits float32 `[rows, vocab]` after the rows' newest `tokens` (int64 `[rows]`).

    The tokens' keys and values enter the cache at its cursor. Valid for the rows and the layout that it was made for.
    """

    def __call__(self, tokens: Tensor) -> Tensor: ...


class MatmulAttention:
    """Scores and sums as batched matrix products over columns `[low, high)` of the first rows; keys in one block."""

    def __init__(self, cache: KVCache, starts: Tensor, low: int, high: int) -> None:
        count, arch = starts.shape[0], cache.arch
        kv, dim, group = arch.num_kv_heads, arch.head_dim, arch.group_size
        self._cache, self._low = cache, low
        self._new_keys, self._new_values = [k[:count, :, 0] for k in cache.keys], [v[:count] for v in cache.values]
        self._keys = [keys[:count].view(count * kv, dim, -1)[:, :, low:high] for keys in cache.keys]
        self._values = [values[:count].view(count * kv, -1, dim)[:, low:high] for values in cache.values]
        column = torch.arange(low, high, device=cache.device)
        seen = (column >= starts[:, None]) & (column < cache.cursor)
        mask = torch.where(seen, 0.0, NEGATIVE).to(cache.dtype).repeat_interleave(kv, dim=0)
        self._mask, self._bias = mask, mask[:, None].expand(count * kv, group, high - low)
        self._scores = torch.empty(count * kv, group, high - low, dtype=cache.dtype, device=cache.device)
        self._attended = torch.empty(count * kv, group, dim, dtype=cache.dtype, device=cache.device)
        self._rows = self._attended.view(count, kv * group * dim)

    def unmask(self) -> None:
        """Let the column at the cursor be seen."""
        self._mask.select(1, self._cache.cursor - self._low).zero_()

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._new_keys[layer].select(3, self._cache.cursor).copy_(k)
        self._new_values[layer].select(2, self._cache.cursor).copy_(v)
        torch.baddbmm(self._bias, q, self._keys[layer], out=self._scores)
        torch._softmax(self._scores, -1, False, out=self._scores)
        torch.bmm(self._scores, self._values[layer], out=self._attended)
        return self._rows


class TensorLayers:
    """`Layers` over `Decoder.forward`, with every view of columns `[low, high)` prepared."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, arena: Arena, rows: Sequence[Request], low: int, high: int
    ) -> None:
        self._decoder, self._cache, self._first = decoder, cache, cache.cursor
        self._ws = Workspace(decoder.arch, len(rows), arena, dtype=decoder.dtype, device=decoder.device)
        starts = torch.tensor([request.start for request in rows], device=decoder.device)
        self._ropes = decoder.later_rotations(rows, range(cache.cursor, high))[:, :, None, None]
        self._attend = MatmulAttention(cache, starts, low, high)

    def __call__(self, tokens: Tensor) -> Tensor:
        self._attend.unmask()
        self._decoder.forward(self._ws, tokens, self._ropes[self._cache.cursor - self._first], self._attend)
        return self._decoder.head(self._ws.x)
