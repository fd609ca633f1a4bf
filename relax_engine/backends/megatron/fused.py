"""RMSNorm and SwiGLU with hand-written gradients: half the memory passes of autograd's.

What lives here: two differentiable functions of tensors. What does not: modules and parameters
(`spec.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _RmsNorm(torch.autograd.Function):
    """With `r = 1 / sqrt(mean(x^2) + eps)`, `n = x r`, `y = n w`:
    `dx = r (dy w - n mean(dy w n))`, `dw = sum over rows of dy n`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        grad, wide_weight = grads[0].float(), weight.float()
        normed = x.float() * scale
        product = grad * normed
        of_weight = product.reshape(-1, len(weight)).sum(dim=0)
        mean = (product @ wide_weight).div_(len(weight))
        of_x = (grad * wide_weight).sub_(normed.mul_(mean[..., None])).mul_(scale)
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None


class _SwiGlu(torch.autograd.Function):
    """Keeps only its input; writes both halves of the gradient into one tensor."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        of_gate, of_up = out.chunk(2, dim=-1)
        torch.mul(F.silu(gate), grads[0], out=of_up)
        torch.ops.aten.silu_backward.grad_input(grads[0] * up, gate, grad_input=of_gate)
        return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension (arXiv 1910.07467).

    The normalisation is computed in float32 and rounded to `x`'s dtype before the weight, as
    transformers does. Shape and dtype are those of `x`.
    """
    return _RmsNorm.apply(x, weight, eps)


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of `[..., 2 f]`, gate in the first half (arXiv 2002.05202); `[..., f]`."""
    return _SwiGlu.apply(gate_up)
