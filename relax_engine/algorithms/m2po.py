"""M2PO: the clip range follows from a budget for the second moment of the log-ratio.

Rewards and advantages as in GRPO; `old` is the policy that sampled. A token is *harmful* where the
ratio has already moved to the side that the advantage pushes it to (A > 0 and ratio > 1, or A < 0 and
ratio < 1). Once per optimizer step, over all unmasked tokens of the global batch, with the trainer's
log-probs as they are before the step:

    M2 = mean(delta^2) over harmful tokens, delta = old - log_prob
    M2 <= budget:  nothing is clipped
    otherwise:     T with mean(min(delta^2, T^2)) = budget,
                   eps_low = max(1 - exp(-T), miniclip_low), eps_high = max(exp(T) - 1, miniclip_high)

and PPO's clip with these two bounds. The bounds are columns of the batch, so the loss is the same
however the batch is split. Source: arXiv 2510.01161.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.advantages import broadcast
from relax_engine.algorithms.grouping import GROUP_FLAGS, group_normalize
from relax_engine.algorithms.loss import importance_ratio, ppo_clip
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec, Constraint, PolicyTerms, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

UNCLIPPED = (1.0, 1e5)
"""Distances of the bounds from one when the budget is kept."""
TOLERANCE = 1e-12
METRICS = ("m2po_eps_low", "m2po_eps_high", "ppo_kl_m2_before", "ppo_kl_m2_after")


def clip_threshold(squares: Tensor, budget: float) -> float:
    """T with `mean(min(squares, T^2)) = budget`, by water filling; infinite if the mean keeps the budget.

    Args:
        squares: Squared log-ratios, f64 `[n]`.
        budget: Largest allowed mean.
    """
    import torch

    count = squares.numel()
    if count == 0 or float(squares.mean()) <= budget:
        return float("inf")
    ordered = squares.sort().values
    below = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)[:-1]])
    # With the j smallest left as they are, the others must share what the budget has left.
    level = (count * budget - below) / torch.arange(count, 0, -1, dtype=ordered.dtype)
    first = int((level <= ordered).nonzero()[0])
    return float(level[first].sqrt())


def trust_region(terms: PolicyTerms, settings: AlgorithmSettings) -> dict[str, Tensor]:
    """The clip bounds for the whole batch, and the second moment before and after, each constant over `[R]`."""
    delta = (terms.old_log_probs - terms.log_probs).double()
    away = (terms.advantages > 0) & (delta < -TOLERANCE) | (terms.advantages < 0) & (delta > TOLERANCE)
    harmful = delta[away & terms.mask]
    threshold = clip_threshold(harmful.square(), settings.m2po_kl2_budget)
    low, high = UNCLIPPED
    if threshold != float("inf"):
        bound = delta.new_tensor(threshold)
        low = max(-float((-bound).expm1()), settings.m2po_miniclip_low)
        high = max(float(bound.expm1()), settings.m2po_miniclip_high)
    largest_up, largest_down = delta.new_tensor(high).log1p(), -(-delta.new_tensor(low)).log1p()
    kept = harmful.clamp(-largest_up, largest_down)
    values = (low, high, _mean_square(harmful), _mean_square(kept))
    return {name: terms.advantages.new_full(delta.shape, value) for name, value in zip(METRICS, values, strict=True)}


def second_moment_loss(terms: PolicyTerms, settings: AlgorithmSettings) -> TokenLoss:
    """PPO clip with the bounds of `trust_region`."""
    loss, clipped = ppo_clip(
        importance_ratio(terms.log_probs, terms.old_log_probs),
        terms.advantages,
        eps_low=terms.columns["m2po_eps_low"],
        eps_high=terms.columns["m2po_eps_high"],
        eps_c=settings.eps_clip_c,
    )
    return TokenLoss(loss, {"pg_clipfrac": clipped, **{name: terms.columns[name] for name in METRICS}})


def _mean_square(values: Tensor) -> float:
    return float(values.square().mean()) if values.numel() else 0.0


SPEC = AlgorithmSpec(
    name="m2po",
    summary="group-normalised rewards, clip bounds from a budget on the second moment of the log-ratio",
    reward_stage=group_normalize,
    advantage=broadcast,
    batch_stage=trust_region,
    policy_loss=second_moment_loss,
    stage_columns=METRICS,
    ratio_to_behaviour=True,
    needs_whole_groups=True,
    accepts_kl_coef=True,
    flags=(*GROUP_FLAGS, "eps_clip_c", "m2po_kl2_budget", "m2po_miniclip_low", "m2po_miniclip_high"),
    constraints=tuple(
        Constraint(
            field=field,
            holds=lambda given: not given,
            reason="already compares with the policy that sampled, so there is nothing left to correct",
            fix=f"remove {flag}",
            default=False,
        )
        for field, flag in (("use_tis", "--use-tis"), ("use_decoupled_ppo", "--use-decoupled-ppo"))
    ),
)
