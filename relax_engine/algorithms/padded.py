"""The same mathematics for padded tensors `[B, T]`: a thin shell over the compact functions.

What lives here: public functions for those who check or reuse single formulas. What does not: any
formula. `config` is any object whose attributes are flag field names; missing ones take the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relax_engine.algorithms.batch import training_columns
from relax_engine.algorithms.reduction import loss_weights
from relax_engine.algorithms.settings import AlgorithmSettings, Reduction
from relax_engine.algorithms.spec import AlgorithmSpec, PolicyTerms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Advantages:
    """`advantages` and `returns`, f32 `[B, T]`, 0 where masked."""

    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`per_token` loss `[B, T]` with gradient, 0 where masked, and metrics as means over unmasked tokens (0-d)."""

    per_token: Tensor
    metrics: dict[str, Tensor]


def compute_advantages(
    spec: AlgorithmSpec,
    *,
    rewards: Any,
    mask: Tensor,
    log_probs: Tensor | None = None,
    ref_log_probs: Tensor | None = None,
    values: Tensor | None = None,
    config: Any = None,
) -> Advantages:
    """Advantages of a whole batch, whitened where the configuration says so.

    Args:
        spec: The algorithm.
        rewards: `[B]`, after `normalize_rewards`; rows whose reward is not finite are left out.
        mask: `[B, T]`, nonzero for response tokens that count.
        log_probs: `[B, T]`, of the old policy; needed by a KL in the reward.
        ref_log_probs: `[B, T]`, likewise.
        values: `[B, T]`, needed by algorithms with a critic.
        config: Flags.

    Raises:
        KeyError: something that the algorithm needs was not given.
    """
    import torch

    given = {"log_probs": log_probs, "ref_log_probs": ref_log_probs, "values": values}
    columns = {name: value.reshape(-1) for name, value in given.items() if value is not None}
    if log_probs is not None:
        columns["rollout_log_probs"] = columns["log_probs"]
    columns |= {"rewards": torch.as_tensor(rewards), "loss_masks": mask.reshape(-1)}
    settings = AlgorithmSettings.from_config(config)
    result = training_columns(spec, settings, columns, _offsets(mask))
    return Advantages(result["advantages"].reshape(mask.shape), result["returns"].reshape(mask.shape))


def policy_loss(
    spec: AlgorithmSpec, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, config: Any = None
) -> LossOutput:
    """The algorithm's loss per token, before corrections, KL, entropy and reduction.

    Args:
        spec: The algorithm.
        log_probs: `[B, T]`, with gradient.
        old_log_probs: `[B, T]`.
        advantages: `[B, T]`, or `[B]` for one per response.
        mask: `[B, T]`.
        config: Flags.
    """
    settings = AlgorithmSettings.from_config(config)
    kept = mask.reshape(-1) != 0
    spread = advantages if advantages.dim() == mask.dim() else advantages[:, None].expand_as(mask)
    current, old, advantage = (
        tensor.reshape(-1).masked_fill(~kept, 0.0) for tensor in (log_probs, old_log_probs.detach(), spread.detach())
    )
    offsets = _offsets(mask)
    columns: dict[str, Tensor] = {}
    if spec.batch_stage is not None:
        columns = spec.batch_stage(PolicyTerms(current.detach(), old, advantage, kept, offsets, {}), settings)
    loss = spec.policy_loss(PolicyTerms(current, old, advantage, kept, offsets, columns), settings)
    count = kept.sum().clamp(min=1)
    metrics = {name: value.masked_fill(~kept, 0.0).sum() / count for name, value in loss.metrics.items()}
    return LossOutput(loss.per_token.masked_fill(~kept, 0.0).reshape(mask.shape), metrics)


def reduce(
    per_token: Tensor,
    mask: Tensor,
    how: Reduction = "sample_mean",
    *,
    constant_length: int | None = None,
    sample_indices: Tensor | None = None,
) -> Tensor:
    """One number from per-token losses `[B, T]`: the sum under `loss_weights`.

    Args:
        per_token: `[B, T]`.
        mask: `[B, T]`.
        how: `sample_mean`, `token_mean` or `constant`.
        constant_length: Tokens, for `constant`.
        sample_indices: int64 `[B]`; rows with one index share a denominator.
    """
    weights = loss_weights(
        mask.reshape(-1), _offsets(mask), how=how, sample_indices=sample_indices, constant_length=constant_length
    )
    return (weights.to(per_token.dtype) * per_token.reshape(-1)).sum()


def _offsets(mask: Tensor) -> Tensor:
    """Row boundaries of `mask.reshape(-1)`: every position is a token, padding is masked."""
    import torch

    rows, width = mask.shape
    return torch.arange(rows + 1, device=mask.device) * width
