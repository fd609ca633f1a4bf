"""The training columns of a global batch: the one function that every mode calls.

What lives here: advantages, returns and loss weights of one optimizer step's batch, for the
advantages role (fully async) and the actor (colocate, hybrid) alike. What does not: estimators
(`advantages`, the algorithm files) and how columns travel (`relax_engine.stream`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_engine.algorithms.advantages import whiten
from relax_engine.algorithms.corrections.weights import batch_mean_weight, importance_correction
from relax_engine.algorithms.distillation import DistillationSettings, distilled_advantages
from relax_engine.algorithms.kl import kl_penalty
from relax_engine.algorithms.reduction import BatchTotals, loss_weights, reducer_scale, row_ids
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AdvantageInputs, AlgorithmSpec, PolicyTerms

if TYPE_CHECKING:
    from torch import Tensor


def needed_columns(
    spec: AlgorithmSpec,
    settings: AlgorithmSettings,
    *,
    true_on_policy: bool = False,
    distillation: DistillationSettings | None = None,
) -> tuple[str, ...]:
    """Columns that `training_columns` needs: those of the algorithm, and of a KL in the reward."""
    on_policy = true_on_policy or spec.ratio_to_behaviour
    needed = ["rewards", "loss_masks", *spec.advantage_columns]
    if settings.tis_batch_normalize:
        needed += ["log_probs", "rollout_log_probs"]
    if settings.kl_in_reward:
        needed += ["ref_log_probs", settings.old_column(true_on_policy=on_policy)]
    if distillation is not None and _distils_sampled(distillation):
        needed += ["teacher_log_probs", settings.old_column(true_on_policy=on_policy)]
    return tuple(dict.fromkeys(needed))


def produced_columns(spec: AlgorithmSpec, settings: AlgorithmSettings) -> tuple[str, ...]:
    """Names of the columns that `training_columns` makes and the loss reads."""
    names = ["advantages", "returns", "loss_weights", *spec.loss_columns]
    if settings.tis_batch_normalize:
        names.append("tis_mean")
    if settings.custom_pg_loss_reducer_function_path is not None:
        names.append("reducer_scale")
    return tuple(names)


def training_columns(
    spec: AlgorithmSpec,
    settings: AlgorithmSettings,
    columns: Mapping[str, Any],
    offsets: Any,
    *,
    true_on_policy: bool = False,
    totals: BatchTotals | None = None,
    distillation: DistillationSettings | None = None,
) -> dict[str, Tensor]:
    """Per-token columns that the policy loss needs, for the rows of one optimizer step.

    Rows whose reward (`rewards`, or `raw_reward` where that column is given) is not finite are
    excluded: their advantages and weights are 0 and they leave the denominators.

    Args:
        spec: The algorithm.
        settings: Its flags.
        columns: NumPy arrays or tensors: `rewards` `[rows]` (after `normalize_rewards`),
            `loss_masks` `[R]`, `sample_indices` `[rows]` (optional), `raw_reward` `[rows]`
            (optional), and what `needed_columns` names.
        offsets: int64 `[rows + 1]`, response boundaries.
        true_on_policy: The weights are still those that sampled the batch (see `make_policy_loss`).
        distillation: Flags of a teacher whose divergence is taken off the advantages, before they are whitened.
        totals: Size of the global batch when the rows are only a part of it, or `UNKNOWN_TOTALS`.
            Where `needs_whole_batch`, the rows must be all of the batch whatever is given here.

    Returns:
        `advantages`, `returns`, `loss_weights`, each f32 `[R]`, and the algorithm's own columns.

    Raises:
        KeyError: a needed column is missing.
        ValueError: lengths do not match.
    """
    needed = set(needed_columns(spec, settings, true_on_policy=true_on_policy, distillation=distillation))
    on_policy = true_on_policy or spec.ratio_to_behaviour
    missing = sorted(needed - columns.keys())
    if missing:
        raise KeyError(f"{spec.name} needs the columns {missing}; there are {sorted(columns)}")
    wanted = needed | ({"raw_reward", "sample_indices"} & columns.keys())
    tensors = {name: _tensor(columns[name]) for name in wanted}
    bounds = _tensor(offsets).long()
    mask = tensors["loss_masks"] != 0
    rewards = tensors["rewards"].float()
    if rewards.numel() != bounds.numel() - 1 or mask.numel() != int(bounds[-1]):
        raise ValueError(
            f"offsets describe {bounds.numel() - 1} rows and {int(bounds[-1])} tokens, "
            f"but there are {rewards.numel()} rewards and {mask.numel()} mask entries"
        )
    excluded = _excluded(tensors)
    mask = mask & ~excluded[row_ids(bounds)]
    penalty = None
    if settings.kl_in_reward:
        old = tensors[settings.old_column(true_on_policy=on_policy)]
        estimate = kl_penalty(old, tensors["ref_log_probs"], settings.kl_loss_type)
        penalty = (settings.kl_coef * estimate).masked_fill(~mask, 0.0)
    inputs = AdvantageInputs(rewards.masked_fill(excluded, 0.0), mask, bounds, penalty, tensors)
    result = dict(spec.advantage(inputs, settings))
    if distillation is not None and _distils_sampled(distillation):
        student = tensors[settings.old_column(true_on_policy=on_policy)]
        teacher = tensors["teacher_log_probs"]
        result["advantages"] = distilled_advantages(result["advantages"], student, teacher, mask, distillation)
    if settings.normalize_advantages:
        result["advantages"] = whiten(result["advantages"], mask)
    result["loss_weights"] = loss_weights(
        mask,
        bounds,
        how=settings.reduction,
        sample_indices=tensors.get("sample_indices"),
        excluded=excluded,
        constant_length=settings.loss_constant_length,
        totals=totals,
    )
    return result | _correction_columns(settings, tensors, mask, bounds, excluded, totals)


def _correction_columns(
    settings: AlgorithmSettings,
    tensors: Mapping[str, Tensor],
    mask: Tensor,
    offsets: Tensor,
    excluded: Tensor,
    totals: BatchTotals | None,
) -> dict[str, Tensor]:
    """What corrections and hooks in the loss must know of the whole batch: one value each, repeated over `[R]`."""
    import torch

    result: dict[str, Tensor] = {}
    if settings.tis_batch_normalize:
        correction = importance_correction(tensors["log_probs"], tensors["rollout_log_probs"], mask, offsets, settings)
        mean = batch_mean_weight(correction.weights, mask, offsets, settings)
        result["tis_mean"] = mean.expand(mask.shape).contiguous()
    if settings.custom_pg_loss_reducer_function_path is not None:
        samples = tensors.get("sample_indices", torch.arange(offsets.numel() - 1))
        result["reducer_scale"] = reducer_scale(
            mask, samples, excluded, per_token=settings.calculate_per_token_loss, totals=totals
        )
    return result


def stage_columns(
    spec: AlgorithmSpec, settings: AlgorithmSettings, columns: Mapping[str, Any], offsets: Any, log_probs: Any
) -> dict[str, Tensor]:
    """What the loss must know of all rows of an optimizer step and of the policy that the step starts from.

    Args:
        spec: An algorithm with a batch stage.
        settings: Its flags.
        columns: `loss_masks`, `rollout_log_probs` and the final `advantages`, each `[R]`.
        offsets: int64 `[rows + 1]`.
        log_probs: `[R]`, of the weights that the step starts from.

    Returns:
        The columns `spec.stage_columns`, f32 `[R]`.
    """
    if spec.batch_stage is None:
        raise ValueError(f"{spec.name} has no batch stage")
    mask = _tensor(columns["loss_masks"]) != 0
    new, old, advantages = (
        _tensor(values).masked_fill(~mask, 0.0)
        for values in (log_probs, columns["rollout_log_probs"], columns["advantages"])
    )
    return spec.batch_stage(PolicyTerms(new, old, advantages, mask, _tensor(offsets).long(), {}), settings)


def needs_whole_batch(spec: AlgorithmSpec, settings: AlgorithmSettings) -> bool:
    """Whether a row's training columns depend on more rows than its prompt group: on all of the optimizer step's.

    So do whitened advantages and corrections normalised over the batch.
    """
    return settings.normalize_advantages or settings.tis_batch_normalize


def batch_totals(columns: Mapping[str, Any], offsets: Any) -> BatchTotals:
    """Size of a part of a batch as `training_columns` counts it: without rows whose reward is not finite.

    Args:
        columns: `loss_masks` `[R]`, and where given `rewards`, `raw_reward` and `sample_indices` `[rows]`.
        offsets: int64 `[rows + 1]`, response boundaries.
    """
    bounds = _tensor(offsets).long()
    wanted = {"rewards", "raw_reward", "sample_indices", "loss_masks"} & columns.keys()
    tensors = {name: _tensor(columns[name]) for name in wanted}
    kept = ~_excluded(tensors) if wanted & {"rewards", "raw_reward"} else bounds.diff() >= 0
    samples = tensors["sample_indices"][kept].unique().numel() if "sample_indices" in tensors else int(kept.sum())
    return BatchTotals(samples, int(((tensors["loss_masks"] != 0) & kept[row_ids(bounds)]).sum()))


def _excluded(tensors: Mapping[str, Tensor]) -> Tensor:
    """Rows whose reward failed, bool `[rows]`."""
    failed = [~tensors[name].isfinite() for name in ("rewards", "raw_reward") if name in tensors]
    return failed[0] if len(failed) == 1 else failed[0] | failed[1]


def _distils_sampled(distillation: DistillationSettings) -> bool:
    """Whether the teacher's sampled log-probs enter the advantages; chosen tokens do so in the loss."""
    return distillation.in_advantage and not distillation.opd_log_prob_top_k


def _tensor(value: Any) -> Tensor:
    import torch

    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
