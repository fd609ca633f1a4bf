"""Rotary embeddings of three positions: time, height and width.

What lives here: the rotations of such positions. What does not: frequencies (`relax_engine.backends.rotary`), the
positions themselves (`relax_engine.multimodal.positions`).
"""

from __future__ import annotations

import numpy as np
import torch

from relax_engine.backends.megatron.rope import Rotation
from relax_engine.backends.rotary import inverse_frequencies, vector_scale
from relax_engine.checkpoint.rope import RopeSpec


class MultimodalRotary:
    """Each frequency turns with one of a token's three positions (Qwen2-VL, arXiv 2409.12191, section 2.1)."""

    def __init__(
        self, rope: RopeSpec, head_dim: int, axes: np.ndarray, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`axes` is int64 `[head_dim / 2]`: which position each frequency turns with."""
        self._frequencies = inverse_frequencies(rope, head_dim).to(device)
        self._axes = torch.from_numpy(axes).to(device)
        self._scale = vector_scale(rope)
        self._dtype, self._device = dtype, device

    def at(self, positions: np.ndarray) -> Rotation:
        """The rotation of each token of `[tokens, 3]`."""
        places = torch.from_numpy(positions).to(self._device, torch.float32)
        angles = (places.index_select(1, self._axes) * self._frequencies)[:, None]
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        return Rotation(cos.repeat(1, 1, 2).to(self._dtype), sin.to(self._dtype))
