"""CISPO: the importance weight is clipped, the gradient is not.

Rewards and advantages as in GRPO. The loss of a token is `-stopgrad(w) A log_prob` with
`w = clip(ratio, 1 - eps_clip, 1 + eps_clip_high)`: every token keeps a gradient, however far its
ratio has moved. MiniMax-M1 leaves the lower side open, which is `--eps-clip 1`. Source: arXiv
2506.13585.
"""

from __future__ import annotations

from relax_engine.algorithms.advantages import broadcast
from relax_engine.algorithms.grouping import GROUP_FLAGS, group_normalize
from relax_engine.algorithms.loss import importance_ratio
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec, PolicyTerms, TokenLoss


def clipped_weight_loss(terms: PolicyTerms, settings: AlgorithmSettings) -> TokenLoss:
    """REINFORCE under the clipped, detached ratio; `pg_clipfrac` is the share of clipped weights."""
    ratio = importance_ratio(terms.log_probs.detach(), terms.old_log_probs)
    weight = ratio.clamp(1.0 - settings.eps_clip, 1.0 + settings.clip_high)
    loss = -weight * terms.advantages * terms.log_probs
    return TokenLoss(loss, {"pg_clipfrac": (weight != ratio).to(loss.dtype)})


SPEC = AlgorithmSpec(
    name="cispo",
    summary="group-normalised rewards, REINFORCE under a clipped importance weight",
    reward_stage=group_normalize,
    advantage=broadcast,
    policy_loss=clipped_weight_loss,
    needs_whole_groups=True,
    accepts_kl_coef=True,
    flags=(*GROUP_FLAGS, "eps_clip", "eps_clip_high"),
)
