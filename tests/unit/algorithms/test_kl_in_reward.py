"""`--kl-coef`: where the penalty enters, which log-probs it compares, and what its gradient is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from relax_engine import algorithms as A
from relax_engine.algorithms.batch import needed_columns

OFFSETS = torch.tensor([0, 3, 5])


def columns() -> dict[str, Any]:
    return {
        "rewards": torch.tensor([1.0, -1.0]),
        "loss_masks": torch.tensor([1, 0, 1, 1, 1]),
        "log_probs": torch.tensor([-1.0, -9.0, -2.0, -1.5, -0.5]),
        "rollout_log_probs": torch.tensor([-1.1, -9.0, -2.1, -1.6, -0.6]),
        "ref_log_probs": torch.tensor([-1.5, 7.0, -1.0, -1.5, -1.0]),
        "values": torch.zeros(5),
    }


def settings(name: str, **flags: Any) -> A.AlgorithmSettings:
    return A.AlgorithmSettings(advantage_estimator=name, kl_coef=0.1, **flags)


@pytest.mark.parametrize("name", ["grpo", "sapo", "cispo", "reinforce_plus_plus_baseline"])
def test_one_advantage_per_response_minus_the_penalty_of_each_token(name: str) -> None:
    made = A.training_columns(A.get(name), settings(name), columns(), OFFSETS)
    # k1 = log_probs - ref: 0.5, masked, -1, 0, 0.5
    assert made["advantages"].tolist() == pytest.approx([0.95, 0.0, 1.1, -1.0, -1.05])


@pytest.mark.parametrize("name", ["ppo", "reinforce_plus_plus"])
def test_token_returns_add_the_penalties_that_are_still_to_come(name: str) -> None:
    made = A.training_columns(A.get(name), settings(name, gamma=0.5), columns(), OFFSETS)
    first = [-0.05 + 0.5 * (1.0 + 0.1), 0.0, 1.1]
    second = [0.5 * (-1.0 - 0.05), -1.05]
    assert made["returns"].tolist() == pytest.approx([*first, *second])


@pytest.mark.parametrize(
    ("flags", "on_policy", "column"),
    [
        ({}, False, "log_probs"),
        ({"use_rollout_logprobs": True}, False, "rollout_log_probs"),
        ({}, True, "rollout_log_probs"),
    ],
)
def test_the_old_policy_is_penalised(flags: dict[str, Any], on_policy: bool, column: str) -> None:
    chosen, spec = settings("grpo", **flags), A.get("grpo")
    needed = needed_columns(spec, chosen, true_on_policy=on_policy)
    assert set(needed) == {"rewards", "loss_masks", "ref_log_probs", column}
    given = {name: value for name, value in columns().items() if name in needed}
    made = A.training_columns(spec, chosen, given, OFFSETS, true_on_policy=on_policy)
    kl = given[column] - given["ref_log_probs"]
    assert float(made["advantages"][0]) == pytest.approx(1.0 - 0.1 * float(kl[0]))


def test_the_reference_is_needed_and_named() -> None:
    given = columns()
    del given["ref_log_probs"]
    with pytest.raises(KeyError, match=r"grpo needs the columns \['ref_log_probs'\]"):
        A.training_columns(A.get("grpo"), settings("grpo"), given, OFFSETS)
    assert settings("grpo").needs_reference
    assert not A.AlgorithmSettings(use_kl_loss=True).needs_reference
    assert "ref_log_probs" in A.make_policy_loss(settings("grpo")).columns


def test_the_penalty_is_reported() -> None:
    given, chosen = columns(), settings("grpo", calculate_per_token_loss=True)
    given |= A.training_columns(A.get("grpo"), chosen, given, OFFSETS)
    _, metrics = A.make_policy_loss(chosen)(given["log_probs"], None, A.LossInputs(given, OFFSETS))
    assert float(metrics["kl_reward"]) == pytest.approx((0.5 - 1 + 0 + 0.5) / 4, abs=1e-6)


def test_k1_in_a_broadcast_advantage_is_k2_in_the_loss() -> None:
    """Where old and current policy agree, both have the gradient `kl_coef * k1 * grad(log_prob)`."""
    in_reward = settings("grpo")
    in_loss = A.AlgorithmSettings(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k2")
    gradients = []
    for chosen in (in_reward, in_loss):
        given = columns()
        given |= A.training_columns(A.get("grpo"), chosen, given, OFFSETS)
        leaf = given["log_probs"].clone().requires_grad_()
        A.make_policy_loss(chosen)(leaf, None, A.LossInputs(given, OFFSETS))[0].backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_discounted_returns_have_the_exact_gradient_of_reward_minus_kl() -> None:
    """Expectation over all responses of two tokens, against autograd through the exact objective."""
    torch.manual_seed(0)
    first = torch.randn(3, dtype=torch.float64, requires_grad=True)
    second = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    ref_first, ref_second = torch.randn(3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    reward, beta = torch.rand(3, 3, dtype=torch.float64), 0.3

    def log_probs(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        """f64 `[9, 2]`: of both tokens of each response."""
        rows = [
            torch.stack([one.log_softmax(0)[i], two.log_softmax(1)[i, j]])
            for i, j in itertools.product(range(3), range(3))
        ]
        return torch.stack(rows)

    current, reference = log_probs(first, second), log_probs(ref_first, ref_second)
    probability = current.sum(1).exp()
    objective = (probability * (reward.reshape(-1) - beta * (current - reference).sum(1))).sum()
    expected = torch.autograd.grad(objective, (first, second), retain_graph=True)
    advantages = A.compute_advantages(
        A.get("reinforce_plus_plus"),
        rewards=reward.reshape(-1),
        mask=torch.ones(9, 2),
        log_probs=current.detach(),
        ref_log_probs=reference,
        config=A.AlgorithmSettings(kl_coef=beta),
    ).advantages
    estimate = (probability.detach()[:, None] * advantages.double() * current).sum()
    actual = torch.autograd.grad(estimate, (first, second))
    for ours, exact in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)
