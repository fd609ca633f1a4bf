"""How far the trainer's and the engine's log-probs of the same tokens are apart.

What lives here: metrics of a whole batch, which cannot be added up over micro-batches (quantiles, effective sample
size), and the per-token ones that can. What does not: corrections (`weights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from relax_engine.algorithms.loss import LOG_RATIO_BOUND

if TYPE_CHECKING:
    from torch import Tensor

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
WEIGHT_SUM, WEIGHT_SQUARES, TOKENS = "tis_weight/sum", "tis_weight_square/sum", "loss_tokens/sum"


def token_mismatch(train_log_probs: Tensor, rollout_log_probs: Tensor) -> dict[str, Tensor]:
    """Per-token estimates of KL(rollout || train), detached.

    `mismatch_kl` is k1 = `rollout - train`, `mismatch_k3_kl` is k3 = `r - 1 - log r` with `r = exp(train - rollout)`.
    """
    log_ratio = (train_log_probs.detach() - rollout_log_probs.detach()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return {"mismatch_kl": -log_ratio, "mismatch_k3_kl": log_ratio.exp() - 1.0 - log_ratio}


def mismatch_metrics(train_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Metrics of a whole batch over its unmasked tokens; {} for a batch without any.

    Args:
        train_log_probs: `[R]`.
        rollout_log_probs: `[R]`.
        mask: bool `[R]`.

    Returns:
        0-d tensors: `mismatch/kl`, `mismatch/k3_kl`, `mismatch/ess` (effective sample size of the unbounded weights,
        as a share of the tokens), `mismatch/ratio/p01`, `p10`, `p50`, `p90`, `p99`, `min`, `max`, and
        `mismatch/beyond_2`, the share of tokens that one side finds more than twice as likely (arXiv 2510.11370).
    """
    import torch

    train, rollout = train_log_probs[mask].detach(), rollout_log_probs[mask].detach()
    if train.numel() == 0:
        return {}
    metrics = {name.replace("_", "/", 1): value.mean() for name, value in token_mismatch(train, rollout).items()}
    ratio = (train - rollout).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    ordered = ratio.sort().values
    last = ordered.numel() - 1
    for share in QUANTILES:
        metrics[f"mismatch/ratio/p{round(100 * share):02d}"] = ordered[round(share * last)]
    metrics |= {"mismatch/ratio/min": ordered[0], "mismatch/ratio/max": ordered[-1]}
    metrics["mismatch/beyond_2"] = ((ratio > 2.0) | (ratio < 0.5)).float().mean()
    count = torch.tensor(ratio.numel(), device=ratio.device)
    metrics["mismatch/ess"] = effective_sample_size(ratio.sum(), ratio.square().sum(), count)
    return metrics


def effective_sample_size(weight_sum: Tensor, square_sum: Tensor, count: Tensor) -> Tensor:
    """`(sum w)^2 / (n sum w^2)`, in (0, 1]: the share of the tokens that equal weights would need. 1 for no weights."""
    return (weight_sum.square() / (count * square_sum)).where(square_sum > 0, square_sum.new_ones(()))


def step_sample_size(metrics: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """`tis_ess` of a step from sums over all its micro-batches and ranks; {} where no weights were used."""
    total, squares, tokens = (metrics.get(prefix + name, 0.0) for name in (WEIGHT_SUM, WEIGHT_SQUARES, TOKENS))
    return {prefix + "tis_ess": total**2 / (tokens * squares)} if tokens * squares else {}
