"""Vectorised sampling: one draw per row by inverse CDF, and the log-prob of what was drawn.

The log-prob is that of the *sampling* distribution: after temperature and, with top-k, top-p or min-p, of
the truncated and renormalised distribution. Greedy rows report the log-prob at temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_engine.backends.engines.local.params import SamplingParams


@dataclass(slots=True)
class RowSampling:
    """The sampling parameters of the running rows as columns `[rows, 1]`."""

    inverse_temperature: Tensor | None
    greedy: Tensor | None
    all_greedy: bool
    truncated: Tensor | None
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], *, device: torch.device) -> RowSampling:
        """Gather the parameters of `params`, in row order."""

        def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        greedy = [item.greedy for item in params]
        truncated = [item.truncates for item in params]
        inverse = [1.0 if item.greedy else 1.0 / item.temperature for item in params]
        infinity = float("inf")
        return cls(
            inverse_temperature=column(inverse) if any(value != 1.0 for value in inverse) else None,
            greedy=column(greedy, torch.bool) if any(greedy) else None,  # type: ignore[arg-type]
            all_greedy=all(greedy),
            truncated=column(truncated, torch.bool) if any(truncated) else None,  # type: ignore[arg-type]
            top_k=column([item.top_k if item.top_k > 0 else infinity for item in params]),
            top_p=column([item.top_p if item.top_p < 1.0 else infinity for item in params]),
            min_p=column([item.min_p for item in params]),
        )


def truncate(probs: Tensor, rows: RowSampling) -> Tensor:
    """Zero what top-k, top-p and min-p exclude and renormalise, on the rows that ask for it.

    All three are judged on the full distribution, as SGLang does: rank below `top_k`; cumulated
    probability of the more likely tokens at most `top_p`; probability at least `min_p` times the largest.
    """
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    before = ordered.cumsum(-1) - ordered
    drop = (rank >= rows.top_k) | (before > rows.top_p) | (ordered < rows.min_p * ordered[:, :1])
    drop[:, 0] = False
    kept = torch.zeros_like(probs).scatter_(1, index, ordered.masked_fill(drop, 0.0))
    kept /= kept.sum(-1, keepdim=True)
    return torch.where(rows.truncated, kept, probs) if rows.truncated is not None else probs


def sample(logits: Tensor, uniform: Tensor, rows: RowSampling, probs: Tensor, cdf: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    Args:
        logits: float32 `[rows, vocab]`, overwritten.
        uniform: float32 `[rows, 1]` in `[0, 1)`.
        rows: parameters in row order.
        probs: float32 scratch `[rows, vocab]`.
        cdf: float32 scratch `[rows, vocab]`.

    Returns:
        Tokens int64 `[rows, 1]` and log-probs float32 `[rows, 1]`; NaN where logits were not finite.
    """
    if rows.inverse_temperature is not None:
        logits.mul_(rows.inverse_temperature)
    torch._softmax(logits, -1, False, out=probs)
    if rows.all_greedy:
        tokens = logits.argmax(-1, keepdim=True)
        return tokens, probs.gather(1, tokens).log_()
    if rows.truncated is not None:
        probs = truncate(probs, rows)
    torch.cumsum(probs, -1, out=cdf)
    # right=True finds the first token whose cumulated mass exceeds the target: never one of mass zero.
    tokens = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True).clamp_(max=cdf.shape[-1] - 1)
    if rows.greedy is not None:
        tokens = torch.where(rows.greedy, logits.argmax(-1, keepdim=True), tokens)
    return tokens, probs.gather(1, tokens).log_()
