"""SAPO: a smooth gate instead of a clip.

Rewards and advantages as in GRPO. The loss of a token is `-(4 / tau) sigmoid(tau (ratio - 1)) A`: at
ratio 1 its gradient is that of the policy gradient, and it fades smoothly as the ratio moves away,
faster for the larger tau. `tau` is `--sapo-tau-pos` where A > 0, else `--sapo-tau-neg`. Source: arXiv
2511.20347.
"""

from __future__ import annotations

from relax_engine.algorithms.advantages import broadcast
from relax_engine.algorithms.grouping import GROUP_FLAGS, group_normalize
from relax_engine.algorithms.loss import importance_ratio
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec, PolicyTerms, TokenLoss

GATE_CLOSING = 0.9
"""A token counts as clipped where the gate's slope is below this share of its largest value."""


def soft_gate_loss(terms: PolicyTerms, settings: AlgorithmSettings) -> TokenLoss:
    """The gated loss; `pg_clipfrac` is the share of tokens with `4 p (1 - p) < 0.9`, p the sigmoid."""
    import torch

    positive = terms.advantages > 0
    tau = torch.where(positive, settings.sapo_tau_pos, settings.sapo_tau_neg).to(terms.log_probs.dtype)
    gate = (tau * (importance_ratio(terms.log_probs, terms.old_log_probs) - 1.0)).sigmoid()
    loss = -(4.0 / tau) * gate * terms.advantages
    closing = 4.0 * gate.detach() * (1.0 - gate.detach()) < GATE_CLOSING
    return TokenLoss(loss, {"pg_clipfrac": closing.to(loss.dtype)})


SPEC = AlgorithmSpec(
    name="sapo",
    summary="group-normalised rewards, a sigmoid gate on the ratio instead of a clip",
    reward_stage=group_normalize,
    advantage=broadcast,
    policy_loss=soft_gate_loss,
    needs_whole_groups=True,
    accepts_kl_coef=True,
    flags=(*GROUP_FLAGS, "sapo_tau_pos", "sapo_tau_neg"),
)
