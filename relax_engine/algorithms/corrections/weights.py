"""Importance weights of the proximal over the behaviour policy: per token or sequence, truncated or masked.

What lives here: the weights as functions of log-probs. What does not: where they enter the loss (`objective`), and
metrics that need the whole batch (`mismatch`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relax_engine.algorithms.loss import LOG_RATIO_BOUND
from relax_engine.algorithms.reduction import row_ids, row_sums
from relax_engine.algorithms.settings import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Correction:
    """What multiplies the policy loss, all detached.

    Attributes:
        weights: `[R]`, 0 for tokens that are left out.
        keep: bool `[R]`, tokens that stay in the loss.
        metrics: Per-token metrics `[R]` by name.
    """

    weights: Tensor
    keep: Tensor
    metrics: dict[str, Tensor]


def importance_correction(
    train_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, offsets: Tensor, settings: AlgorithmSettings
) -> Correction:
    """Weights `exp(train - rollout)`, bounded by `--tis-clip-low` and `--tis-clip`.

    The log-ratio of a token is its own (`--tis-level token`), the sum over its response (`sequence`) or the mean over
    its response (`geometric`); the exponent is clamped to +-20. Outside of the bounds the weight is cut to the bound
    (`--tis-mode truncate`: TIS, Yao et al. 2025) or 0 (`mask`: IcePop, Ling team 2025). `train` are log-probs of the
    proximal policy, so that the weight does not change while the policy is updated.

    Args:
        train_log_probs: `[R]`.
        rollout_log_probs: `[R]`, from the engine.
        mask: bool `[R]`.
        offsets: int64 `[rows + 1]`.
        settings: Reads the `tis_*` fields.

    Raises:
        ValueError: `low > high` or a negative bound.
    """
    low, high = settings.tis_clip_low, settings.tis_clip
    if not 0.0 <= low <= high:
        raise ValueError(f"--tis-clip-low {low} and --tis-clip {high}: need 0 <= low <= high")
    log_ratio = (train_log_probs.detach() - rollout_log_probs.detach()).masked_fill(~mask, 0.0)
    level = _at_level(log_ratio, mask, offsets, settings.tis_level)
    ratio = level.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    inside = (ratio >= low) & (ratio <= high)
    weights = ratio.clamp(low, high) if settings.tis_mode == "truncate" else ratio.where(inside, ratio.new_zeros(()))
    keep = mask & inside if settings.tis_mode == "mask" else mask
    metrics = {
        "tis": ratio,
        "tis_clipfrac": (weights != ratio).to(ratio.dtype),
        "tis_abs": (ratio - 1.0).abs(),
    }
    return Correction(weights, keep, metrics)


def batch_mean_weight(weights: Tensor, mask: Tensor, offsets: Tensor, settings: AlgorithmSettings) -> Tensor:
    """What self-normalised weights are divided by: their mean over the batch, 0-d; 1 for an empty batch.

    Over tokens at token level, over sequences with an unmasked token at the other levels.
    """
    if settings.tis_level != "token":
        tokens = row_sums(mask.to(weights.dtype), offsets)
        present = tokens > 0
        values, count = (row_sums(weights * mask, offsets) / tokens.clamp(min=1.0))[present], present.sum()
    else:
        values, count = weights * mask, mask.sum()
    mean = values.double().sum() / count.clamp(min=1)
    return mean.where(mean > 0, mean.new_ones(())).to(weights.dtype)


def importance_weights(
    train_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, config: Any, *, offsets: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The weights of a whole batch, as the `tis_*` flags ask for them.

    Args:
        train_log_probs: `[B, T]`, a sequence per row; or compact `[R]` with `offsets`.
        rollout_log_probs: Same shape.
        mask: Same shape, nonzero where a token counts.
        config: Any object whose attributes are flag field names.
        offsets: int64 `[rows + 1]` of compact input.

    Returns:
        Weights and keep mask (bool) in the shape of the input, both 0 where masked, and 0-d metrics: means over
        unmasked tokens, and those of `mismatch_metrics`.

    Raises:
        ValueError: compact input without offsets, or bounds that are no range.
    """
    import torch

    from relax_engine.algorithms.corrections.mismatch import effective_sample_size, mismatch_metrics

    settings = AlgorithmSettings.from_config(config)
    shape = train_log_probs.shape
    if offsets is None:
        if len(shape) != 2:
            raise ValueError(f"log-probs of shape {tuple(shape)} need offsets; without them give [sequences, tokens]")
        offsets = torch.arange(shape[0] + 1, device=mask.device) * shape[1]
    kept = mask.reshape(-1) != 0
    train, rollout = train_log_probs.reshape(-1), rollout_log_probs.reshape(-1)
    correction = importance_correction(train, rollout, kept, offsets, settings)
    weights = correction.weights * kept
    count = kept.sum().clamp(min=1)
    metrics = {name: (value * kept).sum() / count for name, value in correction.metrics.items()}
    metrics["tis_masked"] = 1.0 - correction.keep.sum() / count
    metrics["tis_ess"] = effective_sample_size(weights.sum(), weights.square().sum(), count)
    metrics |= mismatch_metrics(train, rollout, kept)
    if settings.tis_batch_normalize:
        weights = weights / batch_mean_weight(weights, kept, offsets, settings)
    return weights.reshape(shape), correction.keep.reshape(shape), metrics


def _at_level(log_ratio: Tensor, mask: Tensor, offsets: Tensor, level: str) -> Tensor:
    if level == "token":
        return log_ratio
    total = row_sums(log_ratio, offsets)
    if level == "geometric":
        total = total / row_sums(mask.to(log_ratio.dtype), offsets).clamp(min=1.0)
    return total[row_ids(offsets)]
