"""Causal attention over many short sequences: float32 on a CPU.

What lives here: attention as batched products that keep the probabilities for the gradient, and where it pays. What
does not: padding sequences to rectangles (`spec.py`).

At some dozens of tokens a fused kernel spends most of its time on its own blocking; a few large batched products take
two thirds of it. They keep `length` probabilities for each query, so long sequences are left to the fused kernel.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

MAX_LENGTH = 128


def pays(query: Tensor) -> bool:
    """Whether to use `short_attention` for a query `[rows, heads, length, d]`."""
    return query.device.type == "cpu" and query.dtype == torch.float32 and query.shape[2] <= MAX_LENGTH


@functools.lru_cache(maxsize=32)
def _causal_bias(length: int, repeats: int) -> Tensor:
    """`[repeats * length, length]`: 0 where a query sees a key, else minus infinity."""
    return torch.full((length, length), float("-inf")).triu_(1).repeat(repeats, 1)


class _ShortAttention(torch.autograd.Function):
    """With `s = scale q k^T + bias`, `p = softmax(s)`, `o = p v`: `dv = p^T do`, `dp = do v^T`,
    `ds = p (dp - sum(p dp))`, `dq = scale ds k`, `dk = scale ds^T q`.

    The query heads that share a key/value head are one taller matrix.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        rows, heads, length, d = query.shape
        groups = key.shape[1]
        q = query.reshape(rows * groups, heads // groups * length, d)
        k, v = key.reshape(rows * groups, length, d), value.reshape(rows * groups, length, -1)
        bias = _causal_bias(length, heads // groups)
        p = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale).softmax(dim=-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale, ctx.shapes = scale, (query.shape, key.shape, value.shape)
        return torch.bmm(p, v).view(rows, heads, length, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, p = ctx.saved_tensors
        of_output = grads[0].reshape(*q.shape[:2], -1)
        of_v = torch.bmm(p.transpose(1, 2), of_output)
        of_p = torch.bmm(of_output, v.transpose(1, 2))
        of_s = torch._softmax_backward_data(of_p, p, -1, p.dtype).mul_(ctx.scale)
        of_q, of_k = torch.bmm(of_s, k), torch.bmm(of_s.transpose(1, 2), q)
        of_query, of_key, of_value = ctx.shapes
        return of_q.view(of_query), of_k.view(of_key), of_v.view(of_value), None


def short_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
    """Causal `softmax(scale q k^T) v` of each row.

    Args:
        query: `[rows, heads, length, d]`. key: `[rows, groups, length, d]`, `groups` divides `heads`.
        value: `[rows, groups, length, d_v]`.

    Returns:
        `[rows, heads, length, d_v]`.
    """
    result: Tensor = _ShortAttention.apply(query, key, value, scale)
    return result
