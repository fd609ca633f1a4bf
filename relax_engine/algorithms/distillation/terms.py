"""The divergence where it acts: taken off the advantage, or added to the loss.

What lives here: the two modes. What does not: the divergences themselves (`divergence`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.distillation.divergence import sampled_divergence, top_k_divergence
from relax_engine.algorithms.distillation.settings import DistillationSettings
from relax_engine.algorithms.loss import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor


def distilled_advantages(
    advantages: Tensor, student: Tensor, teacher: Tensor, mask: Tensor, settings: DistillationSettings
) -> Tensor:
    """`A_t - opd_kl_coef D_t`, with `A = 0` under `--opd-only-reward`; 0 where masked.

    Args:
        advantages: `[R]`, of the reward.
        student: `[R]` log-probs of the policy that sampled; or `[R, k]` of the chosen tokens.
        teacher: Same shape.
        mask: bool `[R]`.
        settings: Flags.
    """
    divergence = _divergence(student.detach(), teacher, settings)
    kept = advantages.new_zeros(()) if settings.opd_only_reward else advantages
    return (kept - settings.opd_kl_coef * divergence).where(mask, advantages.new_zeros(()))


def distillation_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    teacher: Tensor,
    settings: DistillationSettings,
    *,
    candidates: Tensor | None = None,
) -> Tensor:
    """Per-token divergence with gradient, `[R]`.

    With `--opd-is-clip c` it is weighted by `min(current / old, c)`. For the sampled token that ratio carries the
    gradient of the sampling: without it the gradient of `reverse_kl` is zero on average. For chosen tokens it is a
    constant.

    Args:
        log_probs: `[R]` of the sampled tokens, with gradient.
        old_log_probs: `[R]`.
        teacher: `[R]`, or `[R, k]` of the chosen tokens.
        settings: Flags.
        candidates: `[R, k]` log-probs of the chosen tokens, with gradient.
    """
    divergence = _divergence(log_probs if candidates is None else candidates, teacher, settings)
    if settings.opd_is_clip is None:
        return divergence
    ratio = importance_ratio(log_probs, old_log_probs).clamp(max=settings.opd_is_clip)
    return divergence * (ratio if candidates is None else ratio.detach())


def _divergence(student: Tensor, teacher: Tensor, settings: DistillationSettings) -> Tensor:
    if settings.opd_log_prob_min_clamp is not None:
        student, teacher = (values.clamp(min=settings.opd_log_prob_min_clamp) for values in (student, teacher))
    if settings.opd_log_prob_top_k:
        divergence = top_k_divergence(
            student, teacher, settings.opd_kl_type, norm_mode=settings.opd_norm_mode, alpha=settings.opd_jsd_alpha
        )
    else:
        divergence = sampled_divergence(student, teacher, settings.opd_kl_type)
    return divergence if settings.opd_per_token_clip is None else divergence.clamp(max=settings.opd_per_token_clip)
