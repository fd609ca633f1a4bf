"""A user's own correction: what `--custom-tis-function-path` names.

What lives here: the contract, from compact tensors to lists by sample and back. What does not: loading
(`relax_engine.algorithms.hooks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def custom_correction(
    function: Callable[..., Any],
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    offsets: Tensor,
    total_lengths: Tensor,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Call the function with lists by sample, and read what it returns.

    It gets `args`, and by keyword `pg_loss` `[R]`; `train_log_probs`, `rollout_log_probs` (without gradient) and
    `loss_masks`, lists with one tensor per sample; `total_lengths` and `response_lengths`, lists of integers. It
    returns the new `pg_loss` `[R]`, masks as such a list, and per-token metrics `[R]` by name. Masked tokens leave the
    sum; the denominators stay those of the loss mask.

    Returns:
        Loss `[R]`, keep mask bool `[R]`, detached metrics `[R]`.

    Raises:
        TypeError: the function returned something else.
        ValueError: a tensor has the wrong number of tokens.
    """
    import torch

    lengths = offsets.diff().tolist()
    result = function(
        args,
        pg_loss=pg_loss,
        train_log_probs=list(train_log_probs.detach().split(lengths)),
        rollout_log_probs=list(rollout_log_probs.detach().split(lengths)),
        loss_masks=list(mask.to(pg_loss.dtype).split(lengths)),
        total_lengths=total_lengths.tolist(),
        response_lengths=lengths,
    )
    name = getattr(function, "__name__", type(function).__name__)
    if not isinstance(result, tuple) or len(result) != 3:
        raise TypeError(f"--custom-tis-function-path: {name} must return (pg_loss, masks, metrics), got {result!r:.80}")
    loss, masks, metrics = result
    keep = torch.cat(list(masks)) if masks else mask
    for what, value in {"pg_loss": loss, "masks": keep, **metrics}.items():
        if value.shape != pg_loss.shape:
            raise ValueError(
                f"--custom-tis-function-path: {name} returned {what} of shape {tuple(value.shape)}, "
                f"the samples have {pg_loss.numel()} response tokens"
            )
    return loss, keep != 0, {key: value.detach() for key, value in metrics.items()}
