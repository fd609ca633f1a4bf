"""Routing tokens to experts: Megatron's router, with a load-balancing loss weighed as the policy's loss is.

What lives here: what a micro-batch tells the routers and hears from them, and the loss they add. What does not: the
experts, dispatch and combination of tokens, which are Megatron's; choices of whole batches (`replay.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

from relax_engine.backends.megatron.replay import ReplayCount
from relax_engine.backends.routing import choose_experts, expert_scores, expert_weights
from relax_engine.checkpoint.model_spec import ExpertSpec


@dataclass(frozen=True, slots=True)
class Routing:
    """What the routers know of a micro-batch.

    `real` is the number of this rank's tokens that are not padding, `aux_weight` the micro-batch's weight in the
    step's load-balancing loss, times the coefficient; 0 leaves the loss out.
    """

    real: int
    aux_weight: float
    replayed: Tensor | None = None
    """The experts that each of this rank's tokens is sent to, int16 `[tokens, layers, k]`; -1 where the router chooses.
    None where it chooses for all."""
    counted: ReplayCount | None = None
    """Counts the choices that a training pass replays."""
    recorded: dict[int, Tensor] | None = None
    """Where routers put the experts that they send this rank's tokens to, `[tokens, k]` by layer (from 0)."""


class RoutedLayer(TransformerLayer):
    """A layer whose router sees the micro-batch, also where the layer is recomputed."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Megatron's forward pass of the layer."""
        self.mlp.router.micro_batch = kwargs["packed_seq_params"].routing
        return super().forward(*args, **kwargs)


class Router(TopKRouter):
    """The top-k router of Megatron, with the choice of `relax_engine.backends.routing` and the load-balancing loss of
    Switch Transformer (arXiv 2101.03961) in the gradient: `weight * experts * sum_e f_e p_e`, where over the real
    tokens of a micro-batch on all ranks that share it `f_e` is expert e's share of the choices and `p_e` the mean of
    its probability before the choice (of its share of the scores, where these are sigmoids); where the load is balanced
    that is `weight`.

    A bias for the choice stays what the checkpoint says.
    """

    micro_batch: Routing

    def __init__(
        self, config: TransformerConfig, pg_collection: ProcessGroupCollection | None = None, *, rule: ExpertSpec
    ) -> None:
        super().__init__(config, pg_collection)
        self.rule = rule
        if rule.bias:
            self.expert_bias = torch.nn.Parameter(torch.zeros(rule.count), requires_grad=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Leaves the bias in float32 when the model takes another dtype."""
        result = super()._apply(fn, recurse)
        self._maintain_float32_expert_bias()
        return result

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Probabilities and choices `[tokens, experts]` of logits `[tokens, 1, experts]`."""
        scores = expert_scores(logits.flatten(0, -2), self.rule)
        picked = self._replayed(choose_experts(scores, self.rule, self.expert_bias))
        if self.micro_batch.recorded is not None:
            self.micro_batch.recorded[self.layer_number - 1] = picked
        weights = expert_weights(scores, picked, self.rule)
        probs = torch.zeros_like(scores).scatter(1, picked, weights)
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(1, picked, True)
        if self.micro_batch.aux_weight and torch.is_grad_enabled() and self.training:
            shares = scores if self.rule.scores == "softmax" else scores / scores.sum(dim=-1, keepdim=True)
            probs = _AddLoss.apply(probs, self._load_balancing_loss(shares, chosen))
        return probs, chosen

    def _replayed(self, own: Tensor) -> Tensor:
        """Earlier choices `[tokens, k]` in the place of the router's `own`, where they are known: the rollout's (Ma et
        al. 2025, arXiv 2510.11370) or the old policy's (Zheng et al. 2025, arXiv 2507.18071). Their weights, and so the
        gradient, come of the router's scores."""
        if self.micro_batch.replayed is None:
            return own
        first = self.tp_group.rank() * len(own) if self.config.sequence_parallel else 0
        sent = self.micro_batch.replayed[first : first + len(own), self.layer_number - 1].long()
        if self.micro_batch.counted is not None and torch.is_grad_enabled() and self.training:
            self.micro_batch.counted.add(own, sent)
        return torch.where(sent < 0, own, sent)

    def _load_balancing_loss(self, shares: Tensor, chosen: Tensor) -> Tensor:
        """This rank's part of the loss; its sum over the ranks that share the micro-batch is the whole."""
        first = self.tp_group.rank() * len(shares) if self.config.sequence_parallel else 0
        real = (torch.arange(first, first + len(shares), device=shares.device) < self.micro_batch.real)[:, None]
        totals = torch.cat([(chosen & real).sum(dim=0).float(), real.sum().float()[None]])
        dist.all_reduce(totals, group=self.tp_cp_group)
        choices, tokens = totals[:-1], totals[-1].clamp(min=1)
        probabilities = shares.masked_fill(~real, 0.0).sum(dim=0)
        unbalance = len(choices) * (choices / (tokens * self.topk) * probabilities / tokens).sum()
        return self.micro_batch.aux_weight * unbalance


class _AddLoss(torch.autograd.Function):
    """Passes a tensor on and adds a loss to whatever is differentiated: the loss's gradient is 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.loss_dtype = loss.dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], torch.ones((), dtype=ctx.loss_dtype, device=grads[0].device)
