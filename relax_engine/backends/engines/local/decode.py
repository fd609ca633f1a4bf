"""The decoding step over the running rows: a plan of prepared views, then few large operations per step.

A plan is valid while the set of rows and the 16-column bucket of the context stay the same; everything that
a step needs is prepared once per plan, so that a step does no bookkeeping per request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relax_engine.backends.engines.local.compiled import CompiledLayers, compiles
from relax_engine.backends.engines.local.decoder import Arena, Decoder
from relax_engine.backends.engines.local.kv_cache import KVCache
from relax_engine.backends.engines.local.layers import Layers, TensorLayers
from relax_engine.backends.engines.local.request import Request
from relax_engine.backends.engines.local.rng import uniforms
from relax_engine.backends.engines.local.sampling import RowSampling, sample

BUCKET = 16


class StopTable:
    """Which tokens end which row: bool `[rows, vocab]`, and until which column they are held back."""

    def __init__(self, rows: Sequence[Request], vocab_size: int, device: torch.device) -> None:
        pairs = [
            (row, token) for row, request in enumerate(rows) if request.finish is None for token in request.stop_ids
        ]
        self.any = bool(pairs)
        self.mask = torch.zeros(len(rows) if pairs else 0, vocab_size, dtype=torch.bool, device=device)
        if pairs:
            index = torch.tensor(pairs, device=device)
            self.mask[index[:, 0], index[:, 1]] = True
        # Output t of a request is recorded in column first_column + t - len(output_ids).
        held = [r.first_column - len(r.output_ids) + r.params.min_new_tokens if r.stop_ids else 0 for r in rows]
        self.held_until = max(held, default=0)
        self._held = torch.tensor(held, device=device)[:, None]

    def hold_back(self, logits: Tensor, column: int) -> None:
        """Make stop tokens impossible for rows below their `min_new_tokens` at `column`."""
        if self.any and column < self.held_until:
            logits.masked_fill_(self.mask & (self._held > column), float("-inf"))

    def hit(self, tokens: Tensor) -> bool:
        """True when some row just drew one of its stop tokens; tokens `[rows, 1]`."""
        return self.any and bool(self.mask.gather(1, tokens).any())


def output_uniforms(rows: Sequence[Request], columns: range) -> np.ndarray:
    """Uniforms float32 `[columns, rows, 1]` for the outputs that the rows record in `columns`.

    A token's uniform depends on its place in the whole sequence, prompt included, as in SGLang: a response that
    is cut off and continued with the cut text as its prompt draws what it would have drawn.
    """
    seeds = np.array([request.seed for request in rows], dtype=np.uint64)
    offset = np.array([len(r.prompt) + len(r.output_ids) - r.first_column for r in rows], dtype=np.int64)
    positions = np.arange(columns.start, columns.stop, dtype=np.int64)[:, None] + offset
    # Columns before a row's first output are never drawn from.
    return uniforms(seeds, np.maximum(positions, 0))[:, :, None]


class DecodePlan:
    """Prepared views for rows `0..n-1` and columns `[low, high)`; `step` advances the cursor by one."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        arena: Arena,
        rows: Sequence[Request],
        sampling: RowSampling,
        stops: StopTable,
        previous: Tensor,
    ) -> None:
        count, vocab, device = len(rows), decoder.arch.spec.vocab_size, decoder.device
        self.cache, self.sampling, self.stops, self._routed = cache, sampling, stops, decoder.routed
        self.high = min((cache.cursor // BUCKET + 1) * BUCKET, cache.columns)
        self._first = cache.cursor
        self.probs = arena.get("probs", (count, vocab), torch.float32, device)
        self.cdf = arena.get("cdf", (count, vocab), torch.float32, device)
        self._layers: Layers
        if compiles(decoder.dtype, device):
            self._layers = CompiledLayers(decoder, cache, arena, rows, self.high)
        else:
            low = min(request.start for request in rows) // BUCKET * BUCKET
            self._layers = TensorLayers(decoder, cache, arena, rows, low, self.high)
        self._out_tokens, self._out_log_probs = cache.out_tokens[:count], cache.out_log_probs[:count]
        self._uniforms = torch.from_numpy(output_uniforms(rows, range(cache.cursor, self.high))).to(device)
        self.tokens = previous

    def step(self) -> bool:
        """One token for every row; True when some row drew a stop token."""
        column = self.cache.cursor
        logits = self._layers(self.tokens.view(-1))
        if self._routed is not None:
            self.cache.out_experts[: len(self._out_tokens), column] = self._routed.taken(len(self._out_tokens))
        self.stops.hold_back(logits, column)
        self.tokens, log_probs = sample(
            logits, self._uniforms[column - self._first], self.sampling, self.probs, self.cdf
        )
        self._out_tokens.select(1, column).copy_(self.tokens.view(-1))
        self._out_log_probs.select(1, column).copy_(log_probs.view(-1))
        self.cache.cursor = column + 1
        return self.stops.hit(self.tokens)
