"""The linear product: values and gradients against autograd's, for shapes and strides that layers use."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relax_engine.backends.megatron.products import available, linear


def _gradients(function: object, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    output = function(*leaves)  # type: ignore[operator]
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)]


@pytest.mark.parametrize(("wide", "narrow"), [(24, 8), (8, 24)])
@pytest.mark.parametrize("rows", [(5, 1), (7,), (0, 1), (1,)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_has_the_values_and_gradients_of_torch(
    wide: int, narrow: int, rows: tuple[int, ...], with_bias: bool
) -> None:
    assert available()
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(*rows, wide, generator=generator), torch.randn(narrow, wide, generator=generator)
    bias = torch.randn(narrow, generator=generator) if with_bias else None
    expected = _gradients(F.linear, x.double(), weight.double(), None if bias is None else bias.double())
    for actual, reference in zip(_gradients(linear, x, weight, bias), expected, strict=True):
        assert actual.shape == reference.shape
        torch.testing.assert_close(actual.double(), reference, rtol=1e-5, atol=1e-5)


def test_linear_of_a_slice_and_of_a_constant_input() -> None:
    wide, weight = torch.randn(6, 16, generator=torch.Generator().manual_seed(1)), torch.eye(8)[:5].requires_grad_()
    output = linear(wide[:, 4:12], weight)
    assert torch.equal(output, wide[:, 4:9])
    output.sum().backward()
    torch.testing.assert_close(weight.grad, wide[:, 4:12].sum(dim=0).expand(5, 8))
