"""Choosing experts for tokens, the same for the training backend and the embedded engine.

What lives here: from a router's logits to experts and their weights, for every rule that `ExpertSpec` describes. What
does not: the experts, and moving tokens to them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relax_engine.checkpoint.model_spec import ExpertSpec


def expert_scores(logits: Tensor, experts: ExpertSpec) -> Tensor:
    """What each expert's choice goes by, `[tokens, experts]` float32: a softmax, or sigmoids."""
    wide = logits.float()
    return wide.sigmoid() if experts.scores == "sigmoid" else wide.softmax(dim=-1)


def choose_experts(scores: Tensor, experts: ExpertSpec, bias: Tensor | None) -> Tensor:
    """The experts of each token, int64 `[tokens, top_k]`.

    Those with the largest score plus `bias` (float32 `[experts]`) among the groups of experts that are best: a group is
    as good as the sum of its `group_best` largest (arXiv 2405.04434, 2412.19437).
    """
    ranked = scores.detach() if bias is None else scores.detach() + bias
    if experts.top_groups < experts.groups:
        of_groups = ranked.unflatten(-1, (experts.groups, -1))
        quality = of_groups.topk(experts.group_best, dim=-1).values.sum(dim=-1)
        best = quality.topk(experts.top_groups, dim=-1).indices
        out = torch.ones_like(quality, dtype=torch.bool).scatter(-1, best, False)
        ranked = of_groups.masked_fill(out[..., None], float("-inf")).flatten(-2)
    return ranked.topk(experts.top_k, dim=-1).indices


def expert_weights(scores: Tensor, chosen: Tensor, experts: ExpertSpec) -> Tensor:
    """What each chosen expert's output is multiplied with, float32 `[tokens, top_k]`."""
    weights = scores.gather(-1, chosen)
    if experts.normalise:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * experts.scale if experts.scale != 1.0 else weights
