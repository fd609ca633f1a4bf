"""The public padded functions: any object as configuration, and the same numbers as the compact ones."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from relax_engine import algorithms as A
from relax_engine.algorithms.registry import BUILTIN

LENGTHS = [5, 0, 3, 7]
WIDTH = max(LENGTHS)
OFFSETS = torch.tensor([0, *LENGTHS]).cumsum(0)
KEPT = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    names = ("log_probs", "rollout_log_probs", "ref_log_probs", "values", "current")
    padded = {name: torch.randn(4, WIDTH, generator=generator) for name in names}
    inner = torch.rand(4, WIDTH, generator=generator) < 0.8
    return {**padded, "mask": inner & KEPT}


@pytest.mark.parametrize("name", BUILTIN)
def test_padded_equals_compact(name: str) -> None:
    spec, given = A.get(name), batch()
    mask = given["mask"]
    settings = A.AlgorithmSettings(
        advantage_estimator=name,
        kl_coef=0.1 if spec.accepts_kl_coef else 0.0,
        gamma=0.9,
        lambd=0.8,
        normalize_advantages=spec.normalize_advantages != "forbidden",
    )
    rewards = torch.tensor([1.0, -1.0, 0.5, math.nan])
    columns: dict[str, Any] = {key: value[KEPT] for key, value in given.items()}
    columns |= {"rewards": rewards, "loss_masks": columns.pop("mask"), "rollout_log_probs": columns["log_probs"]}
    made = A.training_columns(spec, settings, columns, OFFSETS)
    padded = A.compute_advantages(
        spec,
        rewards=rewards,
        mask=mask,
        log_probs=given["log_probs"],
        ref_log_probs=given["ref_log_probs"],
        values=given["values"],
        config=settings,
    )
    torch.testing.assert_close(padded.advantages[KEPT], made["advantages"])
    torch.testing.assert_close(padded.returns[KEPT], made["returns"])
    assert not padded.advantages[~mask].any()

    current = given["current"].clone().requires_grad_()
    output = A.policy_loss(spec, current, given["log_probs"], padded.advantages, mask, settings)
    if spec.batch_stage is not None:
        made |= A.stage_columns(spec, settings, columns | made, OFFSETS, columns["current"])
    leaf = given["current"][KEPT].clone().requires_grad_()
    loss, _ = A.make_policy_loss(settings)(leaf, None, A.LossInputs(columns | made, OFFSETS))
    loss.backward()
    weights = torch.zeros(4, WIDTH)
    weights[KEPT] = made["loss_weights"]
    total = (weights * output.per_token).sum()
    total.backward()
    torch.testing.assert_close(total.detach(), loss.detach())
    assert current.grad is not None
    torch.testing.assert_close(current.grad[KEPT], leaf.grad)
    assert not current.grad[~mask].any()


def test_missing_flags_take_their_defaults_and_others_are_ignored() -> None:
    arguments = (torch.tensor([[0.5]]), torch.zeros(1, 1), torch.ones(1), torch.ones(1, 1))
    for config in (None, object(), SimpleNamespace(eps_clip=0.2, num_layers=3), A.AlgorithmSettings()):
        assert float(A.policy_loss(A.get("grpo"), *arguments, config).per_token) == pytest.approx(-1.2)
        assert A.normalize_rewards(A.get("grpo"), [1.0, 0.0], [0, 0], config).shape == (2,)


def test_normalize_rewards_takes_tensors() -> None:
    result = A.normalize_rewards(A.get("grpo"), torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    assert isinstance(result, torch.Tensor)
    assert result.tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], abs=1e-5)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token_mean", (1 + 2 + 3) / 3),
        ("sample_mean", ((1 + 2) / 2 + 3) / 2),
        ("constant", (1 + 2 + 3) / (2 * 4)),
    ],
)
def test_reduce(how: Any, expected: float) -> None:
    per_token, mask = torch.tensor([[1.0, 2.0], [3.0, 100.0]]), torch.tensor([[1, 1], [1, 0]])
    assert float(A.reduce(per_token, mask, how, constant_length=4)) == pytest.approx(expected)


def test_rows_of_one_sample_share_a_denominator() -> None:
    per_token, mask = torch.tensor([[1.0, 2.0], [3.0, 0.0], [5.0, 7.0]]), torch.tensor([[1, 1], [1, 0], [1, 1]])
    total = A.reduce(per_token, mask, "sample_mean", sample_indices=torch.tensor([4, 4, 2]))
    assert float(total) == pytest.approx(((1 + 2 + 3) / 3 + (5 + 7) / 2) / 2)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(KeyError, match=r"ppo needs the columns \['values'\]"):
        A.compute_advantages(A.get("ppo"), rewards=[1.0], mask=torch.ones(1, 2))
