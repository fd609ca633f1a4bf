"""Clipped surrogate, its dual clip, importance weights and the supervised loss, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from relax_engine.algorithms import LossInputs, loss_weights, make_sft_loss
from relax_engine.algorithms.loss import ppo_clip


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.5, 1.0, -1.28, 0.0, 1.0),  # above the upper bound, good token: held
        (0.5, 1.0, -0.5, -1.0, 0.0),  # below, good token: still pushed up
        (0.5, -1.0, 0.8, 0.0, 1.0),  # below the lower bound, bad token: held
        (1.5, -1.0, 1.5, 1.0, 0.0),  # above, bad token: pushed down
        (5.0, -1.0, 3.0, 0.0, 0.0),  # dual clip
        (5.0, 1.0, -1.28, 0.0, 1.0),  # dual clip leaves good tokens alone
        (1.1, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_ppo_clip(ratio: float, advantage: float, loss: float, gradient: float, clipped: float) -> None:
    leaf = torch.tensor(ratio, requires_grad=True)
    actual, was_clipped = ppo_clip(leaf, torch.tensor(advantage), eps_low=0.2, eps_high=0.28, eps_c=3.0)
    actual.backward()
    assert float(actual.detach()) == pytest.approx(loss)
    assert float(was_clipped) == clipped
    assert leaf.grad is not None
    assert float(leaf.grad) == pytest.approx(gradient)


def test_without_dual_clip_the_loss_grows_with_the_ratio() -> None:
    loss, _ = ppo_clip(torch.tensor(5.0), torch.tensor(-1.0), eps_low=0.2, eps_high=0.28)
    assert float(loss) == 5.0


def test_dual_clip_constant_must_exceed_one() -> None:
    with pytest.raises(ValueError, match=r"--eps-clip-c 0\.9"):
        ppo_clip(torch.ones(1), torch.ones(1), eps_low=0.2, eps_high=0.2, eps_c=0.9)


def test_sft_loss_is_the_mean_negative_log_likelihood_of_unmasked_tokens() -> None:
    mask = torch.tensor([0, 1, 1, 0, 1])
    offsets = torch.tensor([0, 3, 5])
    weights = loss_weights(mask, offsets, how="token_mean")
    log_probs = torch.tensor([-math.inf, -1.0, -2.0, -9.0, -3.0], requires_grad=True)
    sft = make_sft_loss()
    loss, metrics = sft(log_probs, None, LossInputs({"loss_masks": mask, "loss_weights": weights}, offsets))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(2.0)
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([0, -1 / 3, -1 / 3, 0, -1 / 3])
    assert float(metrics["loss_tokens/sum"]) == 3
