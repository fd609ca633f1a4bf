"""What distinguishes each algorithm, by hand: its advantage, its gradient, its constraints."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from relax_engine import algorithms as A
from relax_engine.algorithms.registry import BUILTIN

ONE = torch.ones(1, 1)


def token(name: str, ratio: float, advantage: float, **flags: Any) -> tuple[float, float]:
    """Loss of one token and its derivative by the log-prob, at log-prob -1."""
    log_prob = torch.full((1, 1), -1.0, dtype=torch.float64, requires_grad=True)
    old = log_prob.detach() - math.log(ratio)
    output = A.policy_loss(A.get(name), log_prob, old, torch.tensor([advantage]), ONE, SimpleNamespace(**flags))
    output.per_token.sum().backward()
    assert log_prob.grad is not None
    return float(output.per_token.detach()), float(log_prob.grad)


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("advantage", [2.0, -0.5])
def test_at_ratio_one_every_loss_has_the_policy_gradient(name: str, advantage: float) -> None:
    assert token(name, 1.0, advantage)[1] == pytest.approx(-advantage)


@pytest.mark.parametrize("name", ["grpo", "gspo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_the_clip_stops_the_gradient(name: str) -> None:
    assert token(name, 1.5, 1.0) == pytest.approx((-1.2, 0.0))
    assert token(name, 1.5, 1.0, eps_clip_high=0.6) == pytest.approx((-1.5, -1.5))
    assert token(name, 0.5, -1.0) == pytest.approx((0.8, 0.0))
    assert token(name, 5.0, -1.0, eps_clip_c=3.0) == pytest.approx((3.0, 0.0))


def test_cispo_clips_the_weight_and_keeps_the_gradient() -> None:
    assert token("cispo", 5.0, 1.0, eps_clip_high=0.28) == pytest.approx((1.28, -1.28))
    assert token("cispo", 0.1, 2.0, eps_clip=0.2) == pytest.approx((1.6, -1.6))
    assert token("cispo", 0.1, 2.0, eps_clip=1.0) == pytest.approx((0.2, -0.2))


def test_sapo_gate_fades_on_both_sides() -> None:
    loss, slope = token("sapo", 3.0, 1.0)
    gate = 1 / (1 + math.exp(-2.0))
    assert loss == pytest.approx(-4 * gate)
    assert slope == pytest.approx(-4 * gate * (1 - gate) * 3.0)
    _, negative = token("sapo", 3.0, -1.0, sapo_tau_neg=2.0)
    gate = 1 / (1 + math.exp(-4.0))
    assert negative == pytest.approx(2 * gate * (1 - gate) * 2.0 * 3.0)


def test_sapo_counts_closing_gates() -> None:
    # 4 p (1 - p) < 0.9 beyond ratio 1 + log((1 + sqrt(0.1)) / (1 - sqrt(0.1))) = 1.655
    old, mask = torch.tensor([[0.0, 0.0]]), torch.ones(1, 2)
    log_probs = torch.tensor([[math.log(1.65), math.log(1.66)]])
    assert float(A.policy_loss(A.get("sapo"), log_probs, old, torch.ones(1), mask).metrics["pg_clipfrac"]) == 0.5


def test_gspo_has_one_ratio_per_response() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -9.0], [-1.0, -1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-1.2, -1.6, -1.0], [-1.0, -1.3, -1.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    advantages = torch.tensor([1.0, -2.0])
    output = A.policy_loss(A.get("gspo"), log_probs, old, advantages, mask, SimpleNamespace(eps_clip=0.9))
    first, second = math.exp((0.2 - 0.4) / 2), math.exp(0.3 / 3)
    assert output.per_token[0].tolist() == pytest.approx([-first, -first, 0.0])
    assert output.per_token[1].tolist() == pytest.approx([2 * second] * 3)
    output.per_token[0].sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [pytest.approx([-first, -first, 0.0]), [0.0, 0.0, 0.0]]


def test_rloo_compares_with_the_others() -> None:
    rewards = A.normalize_rewards(A.get("rloo"), [1.0, 0.0, 0.5, 4.0], [7, 7, 7, 9])
    assert rewards.tolist() == pytest.approx([1.0 - 0.25, 0.0 - 0.75, 0.5 - 0.5, 0.0])
    assert token("rloo", 5.0, 3.0) == pytest.approx((3.0, -3.0))  # no ratio


def test_rloo_is_unbiased_in_expectation() -> None:
    """Two draws from three actions: the mean of the estimate over all pairs is the exact gradient."""
    logits = torch.tensor([0.2, -0.4, 0.9], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    log_probs = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((log_probs.exp() * reward).sum(), logits, retain_graph=True)
    estimate = torch.zeros((), dtype=torch.float64)
    for a in range(3):
        for b in range(3):
            advantage = A.normalize_rewards(A.get("rloo"), reward[[a, b]], [0, 0])
            pair = (log_probs[a] + log_probs[b]).exp().detach()
            estimate = estimate + pair * (advantage[0] * log_probs[a] + advantage[1] * log_probs[b]) / 2
    (actual,) = torch.autograd.grad(estimate, logits)
    torch.testing.assert_close(actual, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["ppo", "reinforce_plus_plus"])
def test_rewards_without_a_group_stay_raw(name: str) -> None:
    result = A.normalize_rewards(A.get(name), [3.0, math.nan, 1.0], [0, 0, 0])
    assert result.tolist() == [3.0, 0.0, 1.0]


def test_reinforce_plus_plus_baseline_centres_and_keeps_the_scale() -> None:
    spec = A.get("reinforce_plus_plus_baseline")
    rewards = A.normalize_rewards(spec, [1.0, 3.0, 10.0, 30.0], [0, 0, 1, 1])
    assert rewards.tolist() == [-1.0, 1.0, -10.0, 10.0]
    config = SimpleNamespace(normalize_advantages=True)
    advantages = A.compute_advantages(spec, rewards=rewards, mask=torch.ones(4, 1), config=config).advantages
    std = np.std([-1, 1, -10, 10], ddof=1)
    assert advantages[:, 0].tolist() == pytest.approx([-1 / std, 1 / std, -10 / std, 10 / std], rel=1e-5)


def test_dr_grpo_is_centred_and_divides_by_a_constant() -> None:
    config = SimpleNamespace(disable_grpo_std_normalization=True)
    rewards = A.normalize_rewards(A.get("grpo"), [1.0, 0.0], [0, 0], config)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    advantages = A.compute_advantages(A.get("grpo"), rewards=rewards, mask=mask, config=config).advantages
    log_probs = torch.zeros(2, 3, requires_grad=True)
    per_token = A.policy_loss(A.get("grpo"), log_probs, torch.zeros(2, 3), advantages, mask, config).per_token
    A.reduce(per_token, mask, "constant", constant_length=10).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [pytest.approx([-0.5 / 20] * 3), pytest.approx([0.5 / 20, 0.0, 0.0])]


@pytest.mark.parametrize(
    ("name", "config", "field", "reason"),
    [
        ("rloo", {"max_staleness": 1}, "max_staleness", "no importance ratio"),
        ("rloo", {"partial_rollout": True}, "partial_rollout", "one weight version"),
        ("rloo", {"num_steps_per_rollout": 2}, "num_steps_per_rollout", "second step"),
        ("rloo", {"calculate_per_token_loss": False}, "calculate_per_token_loss", "every token the same"),
        ("rloo", {"disable_rewards_normalization": True}, "disable_rewards_normalization", "reward normalisation"),
        ("rloo", {"normalize_advantages": True}, "normalize_advantages", "baseline of its own"),
        ("rloo", {"n_samples_per_prompt": 1}, "n_samples_per_prompt", "samples of a group"),
        ("reinforce_plus_plus", {"normalize_advantages": False}, "normalize_advantages", "over the batch"),
        ("reinforce_plus_plus_baseline", {"normalize_advantages": False}, "normalize_advantages", "over the batch"),
        ("reinforce_plus_plus_baseline", {"n_samples_per_prompt": 1}, "n_samples_per_prompt", "samples of a group"),
    ],
)
def test_constraints(name: str, config: dict[str, Any], field: str, reason: str) -> None:
    (found,) = A.violations(A.get(name), SimpleNamespace(**config))
    assert (found.field, found.value) == (field, config[field])
    assert reason in found.reason


def test_rloo_takes_any_reduction_that_counts_tokens_alike() -> None:
    assert A.violations(A.get("rloo"), SimpleNamespace(calculate_per_token_loss=True)) == []
    constant = SimpleNamespace(calculate_per_token_loss=False, loss_constant_length=64)
    assert A.violations(A.get("rloo"), constant) == []


@pytest.mark.parametrize("name", sorted(set(BUILTIN) - {"rloo"}))
def test_everything_with_a_ratio_takes_stale_data(name: str) -> None:
    assert A.violations(A.get(name), SimpleNamespace(max_staleness=8, partial_rollout=True)) == []


def test_every_name_is_its_module_and_says_what_it_is() -> None:
    for name in BUILTIN:
        spec = A.get(name)
        assert spec.name == name
        assert spec.summary
        assert spec.flags is not None
    assert [name for name in BUILTIN if A.get(name).needs_critic] == ["ppo"]
    assert [name for name in BUILTIN if A.get(name).kl_level == "sequence"] == ["gspo"]
