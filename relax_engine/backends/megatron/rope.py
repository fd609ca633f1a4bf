"""Rotary position embeddings: frequencies, cached tables, and the rotation.

What lives here: RoPE as Llama, Qwen2 and Qwen3 use it, plain or with Llama 3.1's rescaling.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relax_engine.checkpoint.families import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians per position of each dimension pair, float32 `[head_dim / 2]`.

    Plain: `theta ** (-2i / head_dim)` (RoFormer, arXiv 2104.09864). Rescaled: long wavelengths are
    stretched by `scaling_factor`, short ones kept, those between interpolated (Llama 3.1).
    """
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.scaling_factor is None:
        return frequencies
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
    smooth = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / rope.scaling_factor + smooth * frequencies


class RotaryTable:
    """Cosines and sines by position, grown on demand and shared by all layers."""

    def __init__(self, rope: RopeSpec, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim)
        self._dtype, self._device = dtype, device
        self._cos, self._sin = torch.empty(0, 1, head_dim), torch.empty(0, 1, head_dim // 2)

    def upto(self, length: int) -> tuple[Tensor, Tensor]:
        """`cos [length, 1, head_dim]` (both halves alike) and `sin [length, 1, head_dim / 2]` of positions from 0."""
        if length > len(self._cos):
            size = 1 << (length - 1).bit_length()
            angles = torch.outer(torch.arange(size, dtype=torch.float32), self._frequencies)[:, None]
            self._cos = angles.cos().repeat(1, 1, 2).to(self._device, self._dtype)
            self._sin = angles.sin().to(self._device, self._dtype)
        return self._cos[:length], self._sin[:length]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair `(x[..., i], x[..., i + d/2])` by its angle.

    Args:
        x: `[tokens, heads, d]`.
        cos: `[tokens, 1, d]`.
        sin: `[tokens, 1, d / 2]`; negated it rotates back, which is the gradient.
    """
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin, value=-1)
    out[..., half:].addcmul_(x[..., :half], sin)
    return out
