"""M2PO: water filling, which tokens count, the bounds, and that they belong to the whole batch."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from relax_engine import algorithms as A
from relax_engine.algorithms.batch import needed_columns
from relax_engine.algorithms.m2po import clip_threshold

M2PO = A.get("m2po")
SETTINGS = A.AlgorithmSettings(advantage_estimator="m2po", m2po_miniclip_low=0.0, m2po_miniclip_high=0.0)


@pytest.mark.parametrize(
    ("squares", "budget", "squared_threshold"),
    [
        ([1.0, 4.0, 9.0], 2.0, 2.5),  # 1 stays, (3 * 2 - 1) / 2 for the other two
        ([9.0, 1.0, 4.0], 3.0, 4.0),  # 1 and 4 stay, 9 - 5 = 4 for the last
        ([4.0, 4.0], 1.0, 1.0),  # all are cut
        ([0.0, 0.0, 8.0], 1.0, 3.0),
    ],
)
def test_water_filling(squares: list[float], budget: float, squared_threshold: float) -> None:
    values = torch.tensor(squares, dtype=torch.float64)
    threshold = clip_threshold(values, budget)
    assert threshold**2 == pytest.approx(squared_threshold)
    assert float(values.clamp(max=threshold**2).mean()) == pytest.approx(budget)


def test_a_kept_budget_has_no_threshold() -> None:
    assert clip_threshold(torch.tensor([1.0, 3.0], dtype=torch.float64), 2.0) == math.inf
    assert clip_threshold(torch.zeros(0, dtype=torch.float64), 0.1) == math.inf


def columns_of(delta: list[float], advantages: list[float], mask: list[int]) -> dict[str, torch.Tensor]:
    """Rows of one token each, with the trainer at -1 and the engine `delta` above it."""
    trainer = torch.full((len(delta),), -1.0)
    return {
        "rewards": torch.tensor(advantages),
        "loss_masks": torch.tensor(mask),
        "log_probs": trainer,
        "rollout_log_probs": trainer + torch.tensor(delta),
    }


def stage(settings: A.AlgorithmSettings, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The bounds for rows of one token each; `log_probs` are those of the present policy."""
    offsets = torch.arange(len(columns["rewards"]) + 1)
    made = A.training_columns(M2PO, settings, columns, offsets)
    return A.stage_columns(M2PO, settings, columns | made, offsets, columns["log_probs"])


def test_only_harmful_unmasked_tokens_count() -> None:
    # harmful: 0.3 up with A > 0, 0.4 down with A < 0; not harmful: two that moved against A; masked: 5.0
    columns = columns_of([-0.3, 0.4, 0.9, -0.9, -5.0], [1.0, -1.0, 1.0, -1.0, 1.0], [1, 1, 1, 1, 0])
    made = stage(SETTINGS, columns)
    assert made["ppo_kl_m2_before"].unique().tolist() == pytest.approx([(0.09 + 0.16) / 2])
    threshold = 0.1  # sqrt(budget): both are cut
    assert made["m2po_eps_low"].unique().tolist() == pytest.approx([1 - math.exp(-threshold)], rel=1e-5)
    assert made["m2po_eps_high"].unique().tolist() == pytest.approx([math.exp(threshold) - 1], rel=1e-5)
    assert made["ppo_kl_m2_after"].unique().tolist() == pytest.approx([0.01], rel=1e-5)


def test_miniclip_is_the_narrowest_range() -> None:
    settings = A.AlgorithmSettings(advantage_estimator="m2po")
    columns = columns_of([-0.3, 0.4], [1.0, -1.0], [1, 1])
    made = stage(settings, columns)
    assert (float(made["m2po_eps_low"][0]), float(made["m2po_eps_high"][0])) == pytest.approx((0.3, 0.5))
    after = (min(0.3, math.log(1.5)) ** 2 + min(0.4, -math.log(0.7)) ** 2) / 2
    assert float(made["ppo_kl_m2_after"][0]) == pytest.approx(after, rel=1e-5)


def test_within_the_budget_nothing_is_clipped() -> None:
    made = stage(SETTINGS, columns_of([-0.09, 0.1], [1.0, -1.0], [1, 1]))
    assert made["m2po_eps_low"].tolist() == [1.0, 1.0]
    assert made["m2po_eps_high"].tolist() == [1e5, 1e5]
    assert made["ppo_kl_m2_after"].tolist() == made["ppo_kl_m2_before"].tolist()


def test_the_ratio_is_to_the_policy_that_sampled() -> None:
    loss_fn = A.make_policy_loss(SETTINGS)
    assert "log_probs" not in loss_fn.columns
    columns = columns_of([-0.05, 0.05], [1.0, -1.0], [1, 1])
    columns |= A.training_columns(M2PO, SETTINGS, columns, torch.arange(3))
    columns |= stage(SETTINGS, columns)
    current = torch.tensor([-1.2, -0.9])
    _, metrics = loss_fn(current, None, A.LossInputs(columns, torch.arange(3)))
    assert float(metrics["ppo_kl"]) == pytest.approx(((-1.05 + 1.2) + (-0.95 + 0.9)) / 2, rel=1e-4)
    assert float(metrics["m2po_eps_high"]) == pytest.approx(1e5)


def test_padded_loss_solves_over_what_it_is_given() -> None:
    log_probs = torch.tensor([[-1.0, -1.0], [-1.0, -9.0]], requires_grad=True)
    old = torch.tensor([[-1.3, -1.0], [-0.6, -1.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    config = SimpleNamespace(m2po_miniclip_low=0.0, m2po_miniclip_high=0.0)
    output = A.policy_loss(M2PO, log_probs, old, torch.tensor([1.0, -1.0]), mask, config)
    assert output.per_token[0, 0].item() == pytest.approx(-math.exp(0.1), rel=1e-5)
    assert output.per_token[1, 0].item() == pytest.approx(math.exp(-0.1), rel=1e-5)
    assert float(output.metrics["pg_clipfrac"]) == pytest.approx(2 / 3)


def test_nobody_need_recompute_the_old_policy() -> None:
    settings = A.AlgorithmSettings(advantage_estimator="m2po", kl_coef=0.1)
    needed = needed_columns(M2PO, settings)
    assert set(needed) == {"rewards", "loss_masks", "ref_log_probs", "rollout_log_probs"}
    with pytest.raises(ValueError, match="grpo has no batch stage"):
        A.stage_columns(A.get("grpo"), settings, {}, [0], [])


@pytest.mark.parametrize(("field", "flag"), [("use_tis", "--use-tis"), ("use_decoupled_ppo", "--use-decoupled-ppo")])
def test_there_is_nothing_to_correct(field: str, flag: str) -> None:
    (found,) = A.violations(M2PO, SimpleNamespace(**{field: True}))
    assert (found.field, found.fix) == (field, f"remove {flag}")
