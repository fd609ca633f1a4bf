"""Attention of short sequences: values and gradients against torch's in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relax_engine.backends.megatron.short_attention import MAX_LENGTH, pays, short_attention


def _reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3, enable_gqa=True)


@pytest.mark.parametrize("shape", [(3, 5, 4, 2), (1, 7, 2, 2), (2, 1, 6, 2), (1, 4, 3, 1)])
def test_values_and_gradients(shape: tuple[int, int, int, int]) -> None:
    rows, length, heads, groups = shape
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, n, length, 8, generator=generator) for n in (heads, groups, groups))
    weights = torch.randn(rows, heads, length, 8, generator=generator)
    results = []
    for function, inputs in (
        (lambda *x: short_attention(*x, scale=0.3), (q, k, v)),
        (_reference, (q.double(), k.double(), v.double())),
    ):
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        output = function(*leaves)
        results.append([output, *torch.autograd.grad((output * weights.to(output.dtype)).sum(), leaves)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


def test_long_sequences_and_other_dtypes_are_left_to_the_fused_kernel() -> None:
    assert pays(torch.empty(1, 1, MAX_LENGTH, 8))
    assert not pays(torch.empty(1, 1, MAX_LENGTH + 1, 8))
    assert not pays(torch.empty(1, 1, 4, 8, dtype=torch.bfloat16))
