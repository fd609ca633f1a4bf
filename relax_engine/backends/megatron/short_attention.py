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
    """Whether to use `short_attention` for a query `[rows, length, heads, d]`."""
    return query.device.type == "cpu" and query.dtype == torch.float32 and query.shape[1] <= MAX_LENGTH


@functools.lru_cache(maxsize=32)
def _causal_bias(length: int, repeats: int) -> Tensor:
    """`[repeats * length, length]`: 0 where a query sees a key, else minus infinity."""
    return torch.full((length, length), float("-inf")).triu_(1).repeat(repeats, 1)


def _by_group(x: Tensor, groups: int) -> Tensor:
    """`[rows, length, heads, d]` to `[rows * groups, heads / groups * length, d]`."""
    rows, length, heads, d = x.shape
    grouped = x.view(rows, length, groups, heads // groups, d).permute(0, 2, 3, 1, 4)
    return grouped.reshape(rows * groups, heads // groups * length, d)


def _by_token(x: Tensor, rows: int, groups: int, length: int) -> Tensor:
    """The opposite of `_by_group`."""
    heads = x.shape[1] // length * groups
    split = x.view(rows, groups, heads // groups, length, x.shape[-1]).permute(0, 3, 1, 2, 4)
    return split.reshape(rows, length, heads, x.shape[-1])


class _ShortAttention(torch.autograd.Function):
    """With `s = scale q k^T + bias`, `p = softmax(s)`, `o = p v`: `dv = p^T do`, `dp = do v^T`,
    `ds = p (dp - sum(p dp))`, `dq = scale ds k`, `dk = scale ds^T q`.

    The query heads that share a key/value head are one taller matrix.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        rows, length, heads, _ = query.shape
        groups = key.shape[2]
        q, k, v = _by_group(query, groups), _by_group(key, groups), _by_group(value, groups)
        bias = _causal_bias(length, heads // groups)
        p = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale).softmax(dim=-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale, ctx.shape = scale, (rows, groups, length)
        return _by_token(torch.bmm(p, v), rows, groups, length)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, p = ctx.saved_tensors
        of_output = _by_group(grads[0], ctx.shape[1])
        of_v = torch.bmm(p.transpose(1, 2), of_output)
        of_p = torch.bmm(of_output, v.transpose(1, 2))
        of_s = torch._softmax_backward_data(of_p, p, -1, p.dtype).mul_(ctx.scale)
        of_q, of_k = torch.bmm(of_s, k), torch.bmm(of_s.transpose(1, 2), q)
        return _by_token(of_q, *ctx.shape), _by_token(of_k, *ctx.shape), _by_token(of_v, *ctx.shape), None


def short_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
    """Causal `softmax(scale q k^T) v` of each row.

    Args:
        query: `[rows, length, heads, d]`. key, value: `[rows, length, groups, d]`, `groups` divides `heads`.

    Returns:
        `[rows, length, heads, d]`.
    """
    result: Tensor = _ShortAttention.apply(query, key, value, scale)
    return result
