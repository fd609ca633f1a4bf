"""KL estimators: closed forms, clamping, and what the unbiased variant's gradient is."""

from __future__ import annotations

import math

import pytest
import torch

from relax_engine.algorithms import kl_penalty


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 0.5), ("low_var_kl", math.exp(-0.5) - 0.5)],
)
def test_closed_forms(kind: str, expected: float) -> None:
    assert float(kl_penalty(torch.tensor(-1.0), torch.tensor(-1.5), kind)) == pytest.approx(expected)


def test_only_low_var_kl_is_clamped() -> None:
    low, ref = torch.tensor(-9.0), torch.tensor(-1.0)
    assert float(kl_penalty(low, ref, "k3")) == pytest.approx(math.exp(8) - 9, rel=1e-5)
    assert float(kl_penalty(low, ref, "low_var_kl")) == 10.0


def test_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'k4'; --kl-loss-type is one of k1, k2, k3, low_var_kl"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "k4")


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_unbiased_gradient_equals_the_gradient_of_the_exact_kl(kind: str) -> None:
    """Expectation over the old policy of the weighted estimate has the exact KL's gradient for k1 and k3.

    k2 is biased by itself (its expectation is not the KL), so it serves as the counter-example.
    """
    logits = torch.tensor([0.3, -0.2, 0.9, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.4, 0.5, -0.7], dtype=torch.float64).log_softmax(0)
    old = torch.tensor([0.2, 0.0, 0.6, 0.3], dtype=torch.float64).log_softmax(0)
    current = logits.log_softmax(0)
    exact = (current.exp() * (current - reference)).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    estimate = (old.exp() * kl_penalty(current, reference, kind, ratio=(current - old).exp())).sum()
    (actual,) = torch.autograd.grad(estimate, logits)
    assert torch.allclose(actual, expected, atol=1e-12) == (kind != "k2")
