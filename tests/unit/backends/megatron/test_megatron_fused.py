"""RMSNorm and SwiGLU: values and gradients against autograd in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relax_engine.backends.megatron.fused import rms_norm, swiglu


def _gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).reshape(output.shape).to(output.dtype)
    return output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)


def _assert_equal(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], **tolerance: float) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, **tolerance)


@pytest.mark.parametrize("shape", [(5, 1, 8), (5, 3, 8), (0, 1, 8)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(shape, generator=generator), torch.randn(8, generator=generator)
    expected = _gradients(lambda a, b: F.rms_norm(a, (8,), b, 1e-2), x.double(), weight.double())
    _assert_equal(_gradients(lambda a, b: rms_norm(a, b, 1e-2), x, weight), expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_of_a_slice_and_in_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    wide, weight = torch.randn(6, 16, generator=generator), torch.randn(8, generator=generator)
    assert torch.equal(rms_norm(wide[:, 3:11], weight, 1e-6), rms_norm(wide[:, 3:11].contiguous(), weight, 1e-6))
    low = _gradients(lambda a, b: rms_norm(a, b, 1e-6), wide[:, :8].bfloat16(), weight.bfloat16())
    expected = _gradients(lambda a, b: F.rms_norm(a, (8,), b, 1e-6), wide[:, :8].double(), weight.double())
    assert all(tensor.dtype == torch.bfloat16 for tensor in low)
    _assert_equal(low, expected, rtol=3e-2, atol=5e-2)


def test_swiglu() -> None:
    x = torch.randn(4, 1, 10, generator=torch.Generator().manual_seed(1)) * 3
    expected = _gradients(lambda a: F.silu(a[..., :5]) * a[..., 5:], x.double())
    _assert_equal(_gradients(swiglu, x), expected, rtol=1e-5, atol=1e-6)
