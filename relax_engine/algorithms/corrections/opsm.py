"""Off-policy sequence masking (OPSM): bad responses that the policy has already left stay out of the loss.

What lives here: the mask. What does not: importance weights (`weights`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.reduction import row_ids, row_sums

if TYPE_CHECKING:
    from torch import Tensor


def off_policy_sequence_mask(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, offsets: Tensor, *, delta: float
) -> Tensor:
    """Tokens that stay: all but those with a negative advantage in a sequence with `mean(old - current) > delta`.

    Source: DeepSeek-V3.2 (arXiv 2512.02556), section 3.1.

    Args:
        log_probs: `[R]`, of the current policy; no gradient flows through the mask.
        old_log_probs: `[R]`.
        advantages: `[R]`.
        mask: bool `[R]`; the mean is over its tokens.
        offsets: int64 `[rows + 1]`.
        delta: Nats per token.

    Returns:
        bool `[R]`.
    """
    divergence = row_sums((old_log_probs - log_probs.detach()) * mask, offsets)
    tokens = row_sums(mask.to(divergence.dtype), offsets).clamp(min=1.0)
    far = (divergence / tokens > delta)[row_ids(offsets)]
    return ~(far & (advantages < 0))
