"""Advantage estimators shared by several algorithms.

What lives here: functions of one global batch in the compact response layout. What does not: the
reward stage (`rewards`), loss weights (`reduction`), and estimators that one algorithm owns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AdvantageInputs

if TYPE_CHECKING:
    from torch import Tensor

WHITEN_EPSILON = 1e-8


def broadcast(inputs: AdvantageInputs, settings: AlgorithmSettings) -> dict[str, Tensor]:
    """`A_t = r - kl_coef KL_t` for every unmasked token of a row; returns equal advantages.

    The penalty of a token acts on that token alone, as a KL term in the loss does: with k1 its
    policy gradient is that of `--use-kl-loss --kl-loss-type k2` where old and current policy agree.

    Returns:
        `advantages` and `returns`, f32 `[R]`, 0 where masked.
    """
    lengths = inputs.offsets.diff()
    advantages = inputs.rewards.repeat_interleave(lengths, output_size=inputs.mask.numel()) * inputs.mask
    if inputs.kl_penalty is not None:
        advantages = advantages - inputs.kl_penalty
    return {"advantages": advantages, "returns": advantages}


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Masked values with mean 0 and unbiased variance 1 over all unmasked tokens of the batch.

    `(x - mean) / sqrt(var + 1e-8)`; with fewer than two unmasked tokens only the mean is removed.

    Args:
        values: f32 `[R]`.
        mask: bool `[R]`.

    Returns:
        f32 `[R]`, 0 where masked.
    """
    count = mask.sum()
    kept = (values * mask).double()
    mean = kept.sum() / count.clamp(min=1)
    centered = (kept - mean) * mask
    if count < 2:
        return centered.to(values.dtype)
    variance = (centered**2).sum() / (count - 1)
    return (centered * (variance + WHITEN_EPSILON).rsqrt()).to(values.dtype)
