"""DPO: the formula as TRL writes it, and its equality with a weighted sum over tokens in any split."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from relax_engine.algorithms import LossInputs
from relax_engine.algorithms.preference import PreferenceLoss, dpo_loss, preference_columns

OFFSETS = torch.tensor([0, 3, 5, 6, 10])
MASK = torch.tensor([1, 1, 0, 1, 1, 1, 1, 0, 1, 1], dtype=torch.bool)
BETA = 0.3


def trl(log_probs: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Losses `[2]` and margins of the two pairs, in TRL's words (`DPOTrainer`, `loss_type="sigmoid"`)."""
    sums, ref_sums = (
        torch.stack([row.sum() for row in (values * MASK).split([3, 2, 1, 4])]) for values in (log_probs, reference)
    )
    chosen_logratios, rejected_logratios = sums[0::2] - ref_sums[0::2], sums[1::2] - ref_sums[1::2]
    delta_score = chosen_logratios - rejected_logratios
    return -functional.logsigmoid(BETA * delta_score), BETA * delta_score


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    log_probs, reference = -3 * torch.rand(2, 10, generator=generator)
    return log_probs, reference


@pytest.mark.parametrize("with_reference", [True, False])
def test_value_gradient_and_metrics_equal_trls(batch: tuple[Tensor, Tensor], with_reference: bool) -> None:
    log_probs, reference = batch
    leaf = log_probs.clone().requires_grad_()
    losses, margins = trl(leaf, reference if with_reference else torch.zeros(10))
    losses.sum().backward()
    columns = preference_columns(log_probs, reference if with_reference else None, MASK, OFFSETS, beta=BETA)
    columns["loss_masks"] = MASK
    for parts in ([(0, 4)], [(0, 1), (1, 3), (3, 4)]):  # a pair may lie in two micro-batches
        ours = log_probs.clone().requires_grad_()
        total = {"loss": 0.0, "dpo_margin": 0.0, "dpo_accuracy": 0.0}
        for first, last in parts:
            span = slice(int(OFFSETS[first]), int(OFFSETS[last]))
            inputs = LossInputs({name: column[span] for name, column in columns.items()}, OFFSETS[first : last + 1])
            loss, metrics = PreferenceLoss()(ours[span], None, inputs)
            loss.backward()
            total = {name: value + float(metrics[name]) for name, value in total.items()}
        torch.testing.assert_close(ours.grad, leaf.grad)
        assert total["loss"] == pytest.approx(losses.sum().item(), rel=1e-6)
        assert total["dpo_margin"] == pytest.approx(margins.sum().item(), rel=1e-5)
        assert total["dpo_accuracy"] == (margins > 0).sum().item()


def test_a_margin_of_zero_costs_log_two_and_pulls_with_half_of_beta() -> None:
    terms = dpo_loss(*torch.tensor([[-5.0], [-3.0], [-5.0], [-3.0]]), beta=BETA)
    assert terms.loss.item() == pytest.approx(torch.tensor(2.0).log().item())
    same = torch.full((4,), -1.0)
    weights = preference_columns(same, same, torch.ones(4, dtype=torch.bool), torch.tensor([0, 2, 4]), beta=BETA)
    assert weights["loss_weights"].tolist() == pytest.approx([BETA / 2, BETA / 2, -BETA / 2, -BETA / 2])


def test_rows_must_be_pairs_with_answers() -> None:
    for offsets in ([0, 2, 3, 4], [0, 4, 4]):
        with pytest.raises(ValueError, match="pairs of rows with at least one answer token"):
            preference_columns(torch.zeros(4), None, torch.ones(4, dtype=torch.bool), torch.tensor(offsets), beta=0.1)
