"""The critic's loss: which branch has the gradient, masks, and independence of the split."""

from __future__ import annotations

import math

import pytest
import torch

from relax_engine.algorithms import AlgorithmSettings, LossInputs, loss_weights, make_value_loss
from relax_engine.algorithms.value import value_error


@pytest.mark.parametrize(
    ("value", "target", "error", "gradient", "clipped"),
    [
        (1.1, 2.0, 0.81, -1.8, 0.0),  # inside the range: plain squared error
        (1.5, 2.0, 0.64, 0.0, 1.0),  # already moved by more than 0.2 towards the target: held
        (0.5, 2.0, 2.25, -3.0, 0.0),  # moved away: pulled back
        (1.5, 0.0, 2.25, 3.0, 0.0),
    ],
)
def test_clip_holds_values_that_have_moved_far_enough(
    value: float, target: float, error: float, gradient: float, clipped: float
) -> None:
    leaf = torch.tensor(value, requires_grad=True)
    actual, was_clipped = value_error(leaf, torch.tensor(1.0), torch.tensor(target), clip=0.2)
    actual.backward()
    assert float(actual.detach()) == pytest.approx(error, rel=1e-5)
    assert float(was_clipped) == clipped
    assert leaf.grad is not None
    assert float(leaf.grad) == pytest.approx(gradient, rel=1e-5)


def test_loss_is_the_weighted_sum_over_unmasked_tokens() -> None:
    mask, offsets = torch.tensor([1, 0, 1, 1]), torch.tensor([0, 2, 4])
    columns = {
        "loss_masks": mask,
        "loss_weights": loss_weights(mask, offsets, how="token_mean"),
        "values": torch.tensor([0.0, math.nan, 0.0, 0.0]),
        "returns": torch.tensor([1.0, math.nan, 2.0, 0.0]),
    }
    values = torch.tensor([0.1, math.inf, 0.2, 0.3], requires_grad=True)
    loss_fn = make_value_loss(AlgorithmSettings(value_clip=0.25))
    loss, metrics = loss_fn(values, None, LossInputs(columns, offsets))
    loss.backward()
    assert float(loss.detach()) == pytest.approx((0.81 + 3.24 + 0.09) / 3, rel=1e-5)
    assert float(metrics["value_clipfrac"]) == 0.0
    assert float(metrics["values"]) == pytest.approx(0.2, rel=1e-5)
    assert values.grad is not None
    assert values.grad[1] == 0
    parts = [
        loss_fn(values.detach()[part], None, LossInputs({k: v[part] for k, v in columns.items()}, torch.tensor([0, 2])))
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert sum(float(part[0]) for part in parts) == pytest.approx(float(loss.detach()), rel=1e-6)
