"""Corrections for sampling and training policies that are not the same.

What lives here: weights that multiply the per-token policy loss when the engine's log-probs differ
from the trainer's for the same tokens. What does not: the ratio inside the loss (`loss`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relax_engine.algorithms.loss import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Correction:
    """Detached weights `[R]` and detached per-token metrics `[R]` by name."""

    weights: Tensor
    metrics: dict[str, Tensor]


def truncated_importance_weights(
    train_log_probs: Tensor, rollout_log_probs: Tensor, *, low: float, high: float
) -> Correction:
    """Token-level truncated importance sampling (TIS).

    `w = clamp(exp(train - rollout), low, high)`, where `train` are the *old* log-probs of the
    trainer: the weight compares two policies of the same weights and does not change while the
    policy is updated. Source: Yao et al., "Your efficient RL framework secretly brings you
    off-policy RL training" (2025).

    Args:
        train_log_probs: `[R]`.
        rollout_log_probs: `[R]`, from the engine.
        low: Lower bound of the weight.
        high: Upper bound of the weight.

    Raises:
        ValueError: `low > high` or a negative bound.
    """
    if not 0.0 <= low <= high:
        raise ValueError(f"--tis-clip-low {low} and --tis-clip {high}: need 0 <= low <= high")
    train, rollout = train_log_probs.detach(), rollout_log_probs.detach()
    ratio = importance_ratio(train, rollout)
    weights = ratio.clamp(low, high)
    log_ratio = train - rollout
    return Correction(
        weights,
        {
            "tis": ratio,
            "tis_clipfrac": (weights != ratio).to(ratio.dtype),
            "tis_abs": (ratio - 1.0).abs(),
            "mismatch_kl": -log_ratio,
            "mismatch_k3_kl": ratio - 1.0 - log_ratio,
        },
    )
