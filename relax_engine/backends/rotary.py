"""Frequencies of rotary position embeddings, the same for the training backend and the embedded engine.

What lives here: the closed forms of each kind of scaling. What does not: what a `config.json` says
(`relax_engine.checkpoint.rope`), tables and rotations, which each backend lays out in its own way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.checkpoint.rope import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians per position of each rotated pair of a head's dimensions, float32 `[rope.rotated(head_dim) / 2]`.

    Unscaled, with d rotated dimensions: `theta ** (-2i / d)`.

    Raises:
        UnsupportedModelError: the rotated dimensions are not pairs.
    """
    dim = rope.rotated(head_dim)
    if dim % 2:
        raise UnsupportedModelError(f"{dim} rotated dimensions of a head of {head_dim} are not pairs")
    plain = 1.0 / rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    match rope.scaling:
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling():
            return _llama3(plain, rope.scaling)
        case YarnScaling():
            return _yarn(plain, rope.scaling, rope.theta)
    return plain


def vector_scale(rope: RopeSpec) -> float:
    """How much longer a rotation makes a vector."""
    return rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    turns = scaling.original * plain / (2 * math.pi)
    width = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / width).clamp(0.0, 1.0)
    return (1 - kept) * plain / scaling.factor + kept * plain


def _yarn(plain: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    pairs = len(plain)

    def pair_that_turns(times: float) -> float:
        """The pair, as a real number, that turns so many times within the original positions."""
        return pairs * math.log(scaling.original / (times * 2 * math.pi)) / math.log(theta)

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = last - first or 0.001
    stretched = ((torch.arange(pairs, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return stretched * plain / scaling.factor + (1 - stretched) * plain
