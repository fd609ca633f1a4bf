"""The forward pass of a decoder over preallocated buffers.

What lives here: `Workspace` (every intermediate of one pass, allocated once per row count) and `Decoder`
(embedding, layers, head). Attention is a callback, since prefill and decoding read the cache differently.
What does not: the key/value cache (`kv_cache.py`), sampling (`sampling.py`), what to run when
(`scheduler.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from relax_engine.backends.engines.local.arch import Architecture
from relax_engine.backends.engines.local.experts import Expert, Experts
from relax_engine.backends.engines.local.media import MediaPrompt, PrefixMedia, delta_tensor
from relax_engine.backends.engines.local.request import Request
from relax_engine.backends.engines.local.routed import RoutedExperts
from relax_engine.backends.engines.local.tower import EngineTower
from relax_engine.backends.engines.local.weights import FusedWeights
from relax_engine.backends.rotary import inverse_frequencies, vector_scale

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`attend(layer, q, k, v)` with q `[rows * kv, group, dim]` (rotated and scaled), k and v
`[rows, kv, dim]` (k rotated); returns `[rows, heads * dim]`."""


Inject = Callable[[int, Tensor], None]
"""`inject(n, x)` changes hidden states `[rows, hidden]` in place behind the first n layers, 0 behind the embedding."""


class Arena:
    """Named buffers that grow to the largest size asked for; smaller requests are views of the same memory."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous tensor of `shape` with undefined contents."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(shape)


class Workspace:
    """Intermediates of one forward pass over `rows` tokens, and the views of them that every layer uses."""

    def __init__(
        self, arch: Architecture, rows: int, arena: Arena, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        kv, group, dim, hidden = arch.num_kv_heads, arch.group_size, arch.head_dim, arch.spec.hidden_size

        def buffer(name: str, *shape: int, kind: torch.dtype = dtype) -> Tensor:
            return arena.get(name, shape, kind, device)

        f32 = torch.float32
        self.x, self.h = buffer("x", rows, hidden), buffer("h", rows, hidden)
        self.norm, self.scale = buffer("norm", rows, 1, kind=f32), buffer("scale", rows, 1, kind=f32)
        self.projected = (rows, kv, group + 2, dim)
        self.qk_norm = buffer("qk_norm", rows, kv, group + 1, 1, kind=f32)
        self.qk_scale = buffer("qk_scale", rows, kv, group + 1, 1, kind=f32)
        # Normalisation and rotation are done in float32.
        self.normed = buffer("normed", rows, kv, group + 1, dim, kind=f32)
        self.rotated = buffer("rotated", rows, kv, group + 1, dim, kind=f32)
        self.complex_in = torch.view_as_complex(self.normed.unflatten(-1, (dim // 2, 2)))
        self.complex_out = torch.view_as_complex(self.rotated.unflatten(-1, (dim // 2, 2)))
        self.qk_out = self.rotated if dtype == f32 else buffer("qk_out", rows, kv, group + 1, dim)
        self.q = self.qk_out.view(rows * kv, group + 1, dim)[:, :group]
        self.k = self.qk_out[:, :, group]
        self.activated = buffer("activated", rows, arch.spec.ffn_hidden_size)


class Decoder:
    """The model: fused weights, rotary table and the layer loop.

    All methods run under `torch.inference_mode` in the engine's one thread. `weights` may be
    replaced between steps.
    """

    def __init__(
        self,
        arch: Architecture,
        weights: FusedWeights,
        *,
        dtype: torch.dtype,
        device: torch.device,
        routed: RoutedExperts | None = None,
    ) -> None:
        """`routed` collects the experts that every pass chooses."""
        self.routed = routed
        self.arch, self.weights, self.dtype, self.device = arch, weights, dtype, device
        self._epsilon = torch.full((1,), arch.spec.rms_norm_eps, device=device)
        self._inverse = inverse_frequencies(arch.spec.rope, arch.spec.rotary_head_dim)
        axes = np.zeros(0, np.int64) if arch.media is None else arch.media.axes(arch.head_dim // 2)
        self._axes = torch.from_numpy(axes).to(device)
        self.tower = None if arch.media is None else EngineTower(arch.media, dtype=dtype, device=device)
        self._rope = torch.empty(0, arch.head_dim // 2, dtype=torch.complex64, device=device)

    def note(self, layer: int) -> Callable[[Tensor], None] | None:
        """What takes the experts that a layer chooses, where they are kept."""
        return None if self.routed is None else self.routed.note(layer)

    def rotations(self, length: int) -> Tensor:
        """Rotations `[n, head_dim / 2]` (complex64) of positions 0 to n - 1, n >= `length`; 1 for pairs that stay."""
        if length > self._rope.shape[0]:
            size = min(self.arch.spec.max_position_embeddings, max(1024, 2 * length))
            angles = torch.outer(torch.arange(max(size, length)).float(), self._inverse)
            turned = torch.polar(torch.full_like(angles, vector_scale(self.arch.spec.rope)), angles)
            kept = torch.ones(len(turned), self.arch.head_dim // 2 - turned.shape[1], dtype=turned.dtype)
            self._rope = torch.cat([turned, kept], dim=1).to(self.device)
        return self._rope

    def rope(self, positions: Tensor, length: int) -> Tensor:
        """Rotations `[rows, 1, 1, head_dim / 2]` (complex64) of int64 `positions`, all below `length`."""
        return self.rotations(length).index_select(0, positions).view(-1, 1, 1, self.arch.head_dim // 2)

    def media_rope(self, positions: Tensor) -> Tensor:
        """Rotations `[rows, 1, 1, head_dim / 2]` (complex64) of time, height and width: positions `[3, rows]`."""
        angles = positions.float().index_select(0, self._axes).T * self._inverse.to(self.device)
        return torch.polar(torch.ones_like(angles), angles)[:, None, None]

    def later_rotations(self, rows: Sequence[Request], columns: range) -> Tensor:
        """Rotations `[columns, rows, head_dim / 2]` (complex64) of the tokens that the rows get in `columns`."""
        first = delta_tensor([request.delta - request.start for request in rows], self.device)
        positions = torch.arange(columns.start, columns.stop, device=self.device)[:, None] + first
        if positions.is_floating_point():
            angles = positions[..., None] * self._inverse.to(self.device)
            return torch.polar(torch.ones_like(angles), angles)
        table = self.rotations(int(positions.max()) + 1)
        return table.index_select(0, positions.view(-1)).view(*positions.shape, -1)

    def encode(self, media: MediaPrompt | None, length: int) -> PrefixMedia | None:
        """What stands in the place of a prompt's media, for a prefix of `length` tokens; None for text."""
        if media is None:
            return None
        assert self.tower is not None
        return self.tower.encode(media, length)

    def _rms(self, x: Tensor, norm: Tensor, scale: Tensor, out: Tensor) -> None:
        """Root-mean-square normalisation of the last dimension; the weight lives in the next matrix."""
        torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32, out=norm)
        torch.addcmul(self._epsilon, norm, norm, value=1.0 / x.shape[-1], out=scale)
        torch.mul(x, scale.rsqrt_(), out=out)

    def forward(
        self, ws: Workspace, tokens: Tensor, rope: Tensor, attend: Attend, inject: Inject | None = None
    ) -> None:
        """Run all layers on `tokens` (int64 `[rows]`); the last hidden states end in `ws.x`."""
        x, in_float = ws.x, self.dtype == torch.float32
        torch.index_select(self.weights.embedding, 0, tokens, out=x)
        if inject is not None:
            inject(0, x)
        for index, layer in enumerate(self.weights.layers):
            self._rms(x, ws.norm, ws.scale, ws.h)
            projected = layer.qkv(ws.h).view(ws.projected)
            qk, v = projected[:, :, :-1], projected[:, :, -1]
            if layer.qk_norm is None:
                ws.normed.copy_(qk)
            else:
                self._rms(qk, ws.qk_norm, ws.qk_scale, ws.normed)
                ws.normed.mul_(layer.qk_norm)
            torch.mul(ws.complex_in, rope, out=ws.complex_out)
            if not in_float:
                ws.qk_out.copy_(ws.rotated)
            x.add_(layer.out(attend(index, ws.q, ws.k, v)))
            self._rms(x, ws.norm, ws.scale, ws.h)
            x.add_(self._mlp(index, layer.mlp, ws))
            if inject is not None:
                inject(index + 1, x)

    def _mlp(self, index: int, mlp: Expert | Experts, ws: Workspace) -> Tensor:
        if isinstance(mlp, Experts):
            return mlp(ws.h, self.note(index))
        gate, up = mlp.gate_up(ws.h).chunk(2, dim=-1)
        torch._C._nn.silu(gate, out=ws.activated)  # type: ignore[call-arg]
        ws.activated.mul_(up)
        return mlp.down(ws.activated)

    def head(self, states: Tensor) -> Tensor:
        """Logits float32 `[rows, vocab]` of hidden `states` `[rows, hidden]`, in new memory."""
        scale = torch.empty(states.shape[0], 1, device=self.device)
        h = torch.empty_like(states)
        self._rms(states, torch.empty_like(scale), scale, h)
        return self.weights.head(h).float()
