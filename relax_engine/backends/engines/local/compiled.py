"""The decoding step for float32 on a CPU: oneDNN's products, and one compiled loop for everything between two of them.

It computes what `layers.py` computes with tensor operations; `docs/design/engine.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relax_engine.backends.engines.local.decoder import Arena, Decoder
from relax_engine.backends.engines.local.experts import Experts
from relax_engine.backends.engines.local.kernels import add_and_normalise, attention_kernel, embed, gate
from relax_engine.backends.engines.local.kv_cache import KVCache
from relax_engine.backends.engines.local.request import PrefixKey, Request


def compiles(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the compiled step serves this dtype and device."""
    return dtype == torch.float32 and device.type == "cpu"


def prefix_leaders(rows: Sequence[Request]) -> tuple[list[int], list[int]]:
    """For each row, the row to read its first columns from, and the column where that ends.

    Rows admitted together with the same prefix hold copies of it in the same columns; reading one copy for all of
    them keeps a group's prompt in the processor's cache. `first_column` is the prefix's last column.
    """
    first: dict[tuple[int, PrefixKey], int] = {}
    leaders = [first.setdefault((r.first_column, r.admitted), row) for row, r in enumerate(rows)]
    return leaders, [r.first_column + 1 for r in rows]


class CompiledLayers:
    """All layers for the newest tokens of the rows of a plan; see `layers.Layers`."""

    def __init__(self, decoder: Decoder, cache: KVCache, arena: Arena, rows: Sequence[Request], high: int) -> None:
        """`high` is the first column that it will not be asked for."""
        arch, count = decoder.arch, len(rows)
        kv, dim, group = arch.num_kv_heads, arch.head_dim, arch.group_size
        self._decoder, self._cache = decoder, cache

        def buffer(name: str, size: int) -> Tensor:
            return arena.get(name, (count, size), torch.float32, decoder.device)

        self._x = buffer("x", arch.spec.hidden_size).numpy()
        self._h, self._attended = buffer("h", arch.spec.hidden_size), buffer("attended", kv * group * dim)
        self._activated = buffer("activated", arch.spec.ffn_hidden_size)
        self._h_array, self._attended_array = self._h.numpy(), self._attended.numpy()
        self._activated_array = self._activated.numpy()
        self._keys, self._values = [k.numpy() for k in cache.keys], [v.numpy() for v in cache.values]
        ropes = decoder.later_rotations(rows, range(cache.cursor, high))
        self._ropes, self._first = torch.view_as_real(ropes).flatten(2).numpy(), cache.cursor
        leaders, shared = prefix_leaders(rows)
        starts = [request.start for request in rows]
        self._places = tuple(np.array(column, dtype=np.int64) for column in (starts, leaders, shared))
        self._unit = np.ones((group + 1, dim), dtype=np.float32)
        self._epsilon = np.float32(arch.spec.rms_norm_eps)
        self._attend = attention_kernel(dim, group, normalise=arch.spec.qk_norm, parallel=torch.get_num_threads() > 1)

    def __call__(self, tokens: Tensor) -> Tensor:
        rope = self._ropes[self._cache.cursor - self._first]
        x, h, epsilon, weights = self._x, self._h_array, self._epsilon, self._decoder.weights
        embed(tokens.numpy(), weights.embedding.numpy(), x, h, epsilon)
        for index, (layer, keys, values) in enumerate(zip(weights.layers, self._keys, self._values, strict=True)):
            weight = self._unit if layer.qk_norm is None else layer.qk_norm.numpy()
            projected = layer.qkv(self._h).numpy()
            self._attend(
                projected, weight, rope, epsilon, *self._places, self._cache.cursor, keys, values,
                self._attended_array,
            )  # fmt: skip
            add_and_normalise(x, layer.out(self._attended).numpy(), h, epsilon)
            if isinstance(layer.mlp, Experts):
                added = layer.mlp(self._h, self._decoder.note(index))
            else:
                gate(layer.mlp.gate_up(self._h).numpy(), self._activated_array)
                added = layer.mlp.down(self._activated)
            add_and_normalise(x, added.numpy(), h, epsilon)
        return weights.head(self._h)
