"""Matrix products of linear layers through oneDNN: float32 on a CPU.

What lives here: `x @ weight.T` with its gradients, and the stand-in for Megatron's linear function that uses it.
What does not: parameters, layers, tensor-parallel communication (Megatron's mappings do it).

oneDNN uses the widest vector units of the machine where the BLAS behind `torch.matmul` may stay on narrower
ones. All three products of a layer fit its one operation `x @ w.T`, given transposed views: nothing is copied.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LinearFunction = Callable[..., Tensor]


def available() -> bool:
    """Whether this torch has the operation."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` in new memory; x `[rows, in]`, weight `[out, in]`, of any strides."""
    if x.numel() == 0:
        return torch.nn.functional.linear(x, weight, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return result


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """`grad.T @ x`, `[out, in]`. The narrower factor goes first, which is up to 1.3 times as fast."""
    if grad.shape[1] <= x.shape[1]:
        return product(grad.t(), x.t())
    return product(x.t(), grad.t()).t()


class _Linear(torch.autograd.Function):
    """With `y = x W^T + b`: `dx = dy W`, `dW = dy^T x`, `db = sum over rows of dy`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        rows = x.reshape(-1, x.shape[-1])
        return product(rows, weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].reshape(-1, len(weight))
        of_x = product(grad, weight.t()).view(x.shape) if ctx.needs_input_grad[0] else None
        of_weight = _weight_gradient(grad, x.reshape(-1, x.shape[-1])) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, grad.sum(dim=0) if ctx.has_bias else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, differentiable; x `[..., in]`, weight `[out, in]`, bias `[out]`, float32 on a CPU."""
    result: Tensor = _Linear.apply(x, weight, bias)
    return result


def replace_linear_functions() -> None:
    """Let Megatron's parallel linear layers multiply with `linear`; other dtypes keep Megatron's functions."""
    layers = importlib.import_module("megatron.core.tensor_parallel.layers")
    for name in ("linear_with_frozen_weight", "linear_with_grad_accumulation_and_async_allreduce"):
        setattr(layers, name, _with_products(getattr(layers, name)))


def _with_products(original: LinearFunction) -> LinearFunction:
    mappings = importlib.import_module("megatron.core.tensor_parallel.mappings")

    @functools.wraps(original)  # Megatron's function keeps a flag on itself, under its public name
    def parallel_linear(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gradient_accumulation_fusion: bool,
        allreduce_dgrad: bool,
        sequence_parallel: bool,
        tp_group: Any = None,
        **rest: Any,
    ) -> Tensor:
        if input.dtype != torch.float32 or weight.dtype != torch.float32:
            flags = (gradient_accumulation_fusion, allreduce_dgrad, sequence_parallel)
            return original(input, weight, bias, *flags, tp_group=tp_group, **rest)
        if sequence_parallel:
            input = mappings.gather_from_sequence_parallel_region(input, group=tp_group)
        elif allreduce_dgrad:
            input = mappings.copy_to_tensor_model_parallel_region(input, group=tp_group)
        return linear(input, weight, bias)

    return parallel_linear
