"""Estimators of KL(current || reference) from the log-probs of sampled tokens.

What lives here: per-token estimators. What does not: their coefficients and where they enter
(`objective` for the loss, the algorithm's advantage for the reward).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOW_VAR_BOUND = 10.0


def _k3(d: Tensor) -> Tensor:
    return (-d).exp() - 1.0 + d


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: d,
    "k2": lambda d: 0.5 * d.square(),
    "k3": _k3,
    "low_var_kl": lambda d: _k3(d).clamp(-LOW_VAR_BOUND, LOW_VAR_BOUND),
}


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, kind: str, *, ratio: Tensor | None = None) -> Tensor:
    """Per-token KL estimate with `d = log_probs - ref_log_probs`.

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d, low_var_kl = k3 clamped to [-10, 10]
    (Schulman, "Approximating KL divergence", 2020).

    Args:
        log_probs: Any shape; carries the gradient.
        ref_log_probs: Same shape.
        kind: One of `ESTIMATORS`.
        ratio: `exp(log_probs - old_log_probs)`, with gradient; multiplies the estimate, which makes
            its gradient unbiased for tokens sampled from the old policy (`--use-unbiased-kl`).

    Raises:
        ValueError: unknown kind.
    """
    if kind not in ESTIMATORS:
        raise ValueError(f"unknown KL estimator {kind!r}; --kl-loss-type is one of {', '.join(ESTIMATORS)}")
    estimate = ESTIMATORS[kind](log_probs - ref_log_probs)
    return estimate if ratio is None else ratio * estimate
