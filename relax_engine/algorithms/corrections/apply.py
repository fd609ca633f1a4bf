"""All corrections of one micro-batch's policy loss, in order: importance weights, then sequence masking.

What lives here: which correction the flags ask for. What does not: any of their formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relax_engine.algorithms.corrections.custom import custom_correction
from relax_engine.algorithms.corrections.mismatch import WEIGHT_SQUARES, WEIGHT_SUM, token_mismatch
from relax_engine.algorithms.corrections.opsm import off_policy_sequence_mask
from relax_engine.algorithms.corrections.weights import importance_correction
from relax_engine.algorithms.hooks import LossHooks
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import PolicyTerms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class CorrectedLoss:
    """`per_token` `[R]` with gradient, `keep` bool `[R]`, per-token metrics `[R]`, and 0-d sums (`.../sum`)."""

    per_token: Tensor
    keep: Tensor
    metrics: dict[str, Tensor]
    sums: dict[str, Tensor]


def corrected_loss(
    pg_loss: Tensor,
    terms: PolicyTerms,
    rollout_log_probs: Tensor,
    settings: AlgorithmSettings,
    hooks: LossHooks,
    *,
    total_lengths: Tensor | None,
) -> CorrectedLoss:
    """The policy loss after importance weights (built-in or the user's) and OPSM.

    Args:
        pg_loss: `[R]`, as the algorithm gives it.
        terms: What the algorithm saw; `old_log_probs` are the proximal policy's.
        rollout_log_probs: `[R]`, the behaviour policy's, 0 where masked.
        settings: The flags.
        hooks: The user's functions.
        total_lengths: int64 `[rows]`, tokens of prompt and response; only for a user's correction.

    Raises:
        ValueError: a user's correction without `total_lengths`.
    """
    mask, keep = terms.mask, terms.mask
    metrics = token_mismatch(terms.old_log_probs, rollout_log_probs)
    sums: dict[str, Tensor] = {}
    if hooks.tis is not None:
        if total_lengths is None:
            raise ValueError("--custom-tis-function-path needs the total lengths of the samples")
        pg_loss, kept, own = custom_correction(
            hooks.tis,
            hooks.args,
            pg_loss=pg_loss,
            train_log_probs=terms.old_log_probs,
            rollout_log_probs=rollout_log_probs,
            mask=mask,
            offsets=terms.offsets,
            total_lengths=total_lengths,
        )
        keep = keep & kept
        metrics |= own
    elif settings.weights_policies:
        correction = importance_correction(terms.old_log_probs, rollout_log_probs, mask, terms.offsets, settings)
        weights = correction.weights * mask
        keep = correction.keep
        metrics |= correction.metrics | {"tis_masked": (mask & ~keep).to(weights.dtype)}
        sums |= {WEIGHT_SUM: weights.sum(), WEIGHT_SQUARES: weights.square().sum()}
        if settings.tis_batch_normalize:
            weights = weights / terms.columns["tis_mean"]
        pg_loss = pg_loss * weights
    if settings.use_opsm:
        # A proximal policy that is the current one says nothing of how far the behaviour policy is.
        old = rollout_log_probs if settings.use_decoupled_ppo else terms.old_log_probs
        stays = off_policy_sequence_mask(
            terms.log_probs, old, terms.advantages, mask, terms.offsets, delta=settings.opsm_delta
        )
        metrics["opsm_clipfrac"] = (mask & ~stays).to(pg_loss.dtype)
        keep = keep & stays
    return CorrectedLoss(pg_loss.masked_fill(~keep, 0.0), keep, metrics, sums)
