"""GSPO: one importance ratio per response, the geometric mean of its tokens' ratios.

Rewards and advantages as in GRPO; the ratio of every token is `exp(mean_t(log_prob - old))` over the
unmasked tokens of its row, with gradient through the mean, and PPO's clip acts on it. The ratio of a
whole response moves little, so the clip range is small: the paper uses `--eps-clip 3e-4
--eps-clip-high 4e-4`. Source: arXiv 2507.18071.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.advantages import broadcast
from relax_engine.algorithms.grouping import GROUP_FLAGS, group_normalize
from relax_engine.algorithms.loss import CLIP_FLAGS, LOG_RATIO_BOUND, clipped_loss
from relax_engine.algorithms.reduction import row_ids, row_sums
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec, PolicyTerms, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor


def sequence_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, offsets: Tensor) -> Tensor:
    """`exp` of the row's mean log-ratio over its unmasked tokens, repeated for each token, `[R]`.

    The exponent is clamped to +-20. A row without unmasked tokens has ratio 1.
    """
    kept = mask.to(log_probs.dtype)
    total = row_sums((log_probs - old_log_probs) * kept, offsets)
    mean = total / row_sums(kept, offsets).clamp(min=1.0)
    return mean.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()[row_ids(offsets)]


def sequence_ppo_loss(terms: PolicyTerms, settings: AlgorithmSettings) -> TokenLoss:
    """PPO clip on the sequence ratio, with the bounds of `--eps-clip`, `-high` and `-c`."""
    ratio = sequence_ratio(terms.log_probs, terms.old_log_probs, terms.mask, terms.offsets)
    return clipped_loss(ratio, terms.advantages, settings)


SPEC = AlgorithmSpec(
    name="gspo",
    summary="group-normalised rewards, clipped surrogate of one ratio per response",
    reward_stage=group_normalize,
    advantage=broadcast,
    policy_loss=sequence_ppo_loss,
    kl_level="sequence",
    needs_whole_groups=True,
    why_no_kl_coef="clips one ratio with one advantage per response, which a penalty that differs from token to "
    "token would undo",
    flags=(*GROUP_FLAGS, *CLIP_FLAGS),
)
