"""Per-token policy losses shared by several algorithms.

What lives here: clipped surrogates of an importance ratio. What does not: reduction, KL, entropy
and off-policy corrections (`objective` puts them together).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import PolicyTerms, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_BOUND = 20.0
CLIP_FLAGS = ("eps_clip", "eps_clip_high", "eps_clip_c")
"""Flags that `clipped_loss` reads."""


def importance_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """`exp(log_probs - old_log_probs)`; the exponent is clamped to +-20 so that it stays finite."""
    return (log_probs - old_log_probs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def ppo_clip(
    ratio: Tensor,
    advantages: Tensor,
    *,
    eps_low: float | Tensor,
    eps_high: float | Tensor,
    eps_c: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate, as a loss per token.

    `max(-ratio A, -clip(ratio, 1 - eps_low, 1 + eps_high) A)` (PPO, arXiv 1707.06347); with dual clip,
    `min(-eps_c A, .)` where `A < 0` (arXiv 1912.09729), so that a token with a huge ratio and a
    negative advantage has a bounded loss and no gradient.

    Args:
        ratio: Any shape, with gradient.
        advantages: Same shape.
        eps_low: Distance of the lower bound from one; a number, or one per token.
        eps_high: Distance of the upper bound from one; a number, or one per token.
        eps_c: Dual clip constant, > 1; None for no dual clip.

    Returns:
        `(loss, clipped)`; `clipped` is 1 where the clipped branch is the larger, before dual clip.

    Raises:
        ValueError: `eps_c <= 1`.
    """
    if eps_c is not None and eps_c <= 1.0:
        raise ValueError(f"--eps-clip-c {eps_c}: the dual clip constant must be greater than 1")
    unclipped = -ratio * advantages
    one = ratio.new_tensor(1.0)
    clipped = -ratio.clamp(one - eps_low, one + eps_high) * advantages
    loss = unclipped.maximum(clipped)
    if eps_c is not None:
        loss = loss.minimum(-eps_c * advantages).where(advantages < 0, loss)
    return loss, (clipped > unclipped).to(ratio.dtype)


def clipped_loss(ratio: Tensor, advantages: Tensor, settings: AlgorithmSettings) -> TokenLoss:
    """PPO clip on any ratio `[R]`, with the bounds of `--eps-clip`, `-high` and `-c`."""
    loss, clipped = ppo_clip(
        ratio, advantages, eps_low=settings.eps_clip, eps_high=settings.clip_high, eps_c=settings.eps_clip_c
    )
    return TokenLoss(loss, {"pg_clipfrac": clipped})


def token_ppo_loss(terms: PolicyTerms, settings: AlgorithmSettings) -> TokenLoss:
    """PPO clip on the per-token ratio."""
    return clipped_loss(importance_ratio(terms.log_probs, terms.old_log_probs), terms.advantages, settings)
