"""Rotary position embeddings: cached tables, and the rotation with its gradient.

What lives here: RoPE over packed tokens. What does not: frequencies (`relax_engine.backends.rotary`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relax_engine.backends.rotary import inverse_frequencies, vector_scale
from relax_engine.checkpoint.rope import RopeSpec


class Rotation(NamedTuple):
    """The angle of each token's pairs: `cos [tokens, 1, d]`, 1 for dimensions that are not rotated, and
    `sin [tokens, 1, rotated / 2]`. A pair is two neighbours where `adjacent`, else one of each half."""

    cos: Tensor
    sin: Tensor
    adjacent: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """`x` `[tokens, heads, d]`, rotated."""
        result: Tensor = _Rotate.apply(x, *self)
        return result


class RotaryTable:
    """Cosines and sines by position, grown on demand and shared by all layers."""

    def __init__(self, rope: RopeSpec, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rope, self._head_dim = rope, head_dim
        self._frequencies = inverse_frequencies(rope, head_dim)
        self._dtype, self._device = dtype, device
        self._cos, self._sin = torch.empty(0, 1, head_dim), torch.empty(0, 1, len(self._frequencies))

    def upto(self, length: int) -> Rotation:
        """The rotations of positions from 0 to `length` - 1.

        Raises:
            ValueError: the model's RoPE is not defined for so many.
        """
        if self._rope.max_positions is not None and length > self._rope.max_positions:
            raise ValueError(
                f"a sequence of {length} tokens: dynamic RoPE scaling is supported up to max_position_embeddings "
                f"({self._rope.max_positions}), where it changes nothing; shorten sequences, or use YaRN"
            )
        if length > len(self._cos):
            size = 1 << (length - 1).bit_length()
            angles = torch.outer(torch.arange(size, dtype=torch.float32), self._frequencies)[:, None]
            scale = vector_scale(self._rope)
            cos, sin = angles.cos() * scale, angles.sin() * scale
            cos = cos.repeat_interleave(2, dim=-1) if self._rope.adjacent else cos.repeat(1, 1, 2)
            plain = torch.ones(size, 1, self._head_dim - cos.shape[-1])
            self._cos = torch.cat([cos, plain], dim=-1).to(self._device, self._dtype)
            self._sin = sin.to(self._device, self._dtype)
        return Rotation(self._cos[:length], self._sin[:length], self._rope.adjacent)

    def at(self, positions: np.ndarray) -> Rotation:
        """The rotation of each position of `[tokens]`."""
        index = torch.from_numpy(positions).to(self._device)
        cos, sin, adjacent = self.upto(int(positions.max()) + 1)
        return Rotation(cos.index_select(0, index), sin.index_select(0, index), adjacent)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool = False) -> Tensor:
    """Rotate each pair of `x` `[tokens, heads, d]` by its angle; see `Rotation`.

    With `sin` negated it rotates back, which is the gradient.
    """
    half = sin.shape[-1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if adjacent else (slice(half), slice(half, 2 * half))
    out = x * cos
    out[..., first].addcmul_(x[..., second], sin, value=-1)
    out[..., second].addcmul_(x[..., first], sin)
    return out


class _Rotate(torch.autograd.Function):
    """RoPE; the gradient is the rotation by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.adjacent = adjacent
        return rotate(x, cos, sin, adjacent)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(grads[0], cos, -sin, ctx.adjacent), None, None, None
