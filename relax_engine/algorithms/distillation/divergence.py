"""Divergences of student and teacher, per token.

What lives here: estimates from the sampled token alone, and sums over the likeliest tokens. What does not: their
coefficients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.loss import LOG_RATIO_BOUND

if TYPE_CHECKING:
    from torch import Tensor


def sampled_divergence(student: Tensor, teacher: Tensor, kind: str) -> Tensor:
    """Estimate of KL(student || teacher) from tokens that the student sampled.

    `reverse_kl` is `s - t`; `low_var_kl` is `exp(t - s) - 1 + (s - t)`, never negative, its exponent clamped to +-20.

    Args:
        student: Log-probs of the sampled tokens, any shape.
        teacher: The teacher's of the same tokens, same shape.
        kind: `reverse_kl` or `low_var_kl`.

    Raises:
        ValueError: another kind; those need the probabilities of more than the sampled token.
    """
    difference = student - teacher
    if kind == "reverse_kl":
        return difference
    if kind == "low_var_kl":
        return (-difference).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp() - 1.0 + difference
    raise ValueError(f"--opd-kl-type {kind} needs more than the sampled token; set --opd-log-prob-top-k")


def top_k_divergence(
    student: Tensor, teacher: Tensor, kind: str, *, norm_mode: str = "tail", alpha: float = 0.5
) -> Tensor:
    """Divergence over k chosen tokens and what `norm_mode` makes of the rest of the vocabulary.

    `reverse_kl` = sum p_s (log p_s - log p_t); `forward_kl` = sum p_t (log p_t - log p_s); `jsd` = alpha KL(t || m) +
    (1 - alpha) KL(s || m) with m = (1 - alpha) p_s + alpha p_t (GKD, arXiv 2306.13649), in `[0, H(alpha)]`.

    Args:
        student: Log-probs of the chosen tokens, `[..., k]`.
        teacher: The teacher's of the same tokens, same shape.
        kind: `reverse_kl`, `forward_kl` or `jsd`.
        norm_mode: `tail`: the other tokens are one more, with the remaining probability; `norm`: both are rescaled
            to 1; `trunc`: the other tokens are left out, and the sum can be negative.
        alpha: Share of the teacher in the mixture of `jsd`.

    Returns:
        `[...]`.

    Raises:
        ValueError: an unknown kind or mode.
    """
    student, teacher = _normalized(student, norm_mode), _normalized(teacher, norm_mode)
    if kind == "reverse_kl":
        return _kl(student, teacher)
    if kind == "forward_kl":
        return _kl(teacher, student)
    if kind == "jsd":
        mixture = _mixture(student, teacher, alpha)
        return alpha * _kl(teacher, mixture) + (1.0 - alpha) * _kl(student, mixture)
    raise ValueError(
        f"--opd-kl-type {kind} is an estimate from the sampled token; with --opd-log-prob-top-k use "
        "reverse_kl, forward_kl or jsd"
    )


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1)


def _mixture(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    import math

    import torch

    if not 0.0 < alpha < 1.0:
        raise ValueError(f"--opd-jsd-alpha {alpha}: must lie between 0 and 1, without them")
    return torch.logaddexp(student + math.log1p(-alpha), teacher + math.log(alpha))


def _normalized(log_probs: Tensor, mode: str) -> Tensor:
    import torch

    if mode == "trunc":
        return log_probs
    if mode == "norm":
        return log_probs - log_probs.logsumexp(-1, keepdim=True)
    if mode == "tail":
        # Rounding may push the sum over 1; a tail of 1e-6 keeps its logarithm and gradient finite.
        rest = (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=1e-6)
        return torch.cat([log_probs, rest.log()], dim=-1)
    raise ValueError(f"unknown --opd-norm-mode {mode!r}; use tail, norm or trunc")
