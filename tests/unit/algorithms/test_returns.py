"""Discounted returns and GAE: closed forms, masks, long rows, and equality with a plain loop."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from relax_engine.algorithms.returns import discounted_returns, gae, token_rewards
from relax_engine.algorithms.spec import AdvantageInputs


def by_hand(
    rewards: Tensor, values: Tensor, mask: Tensor, offsets: Tensor, gamma: float, lambd: float
) -> tuple[list[float], list[float]]:
    """The recursion as it is written in the paper, token by token from the end."""
    advantages, returns = [0.0] * len(rewards), [0.0] * len(rewards)
    for start, end in pairwise(offsets.tolist()):
        following = advantage = 0.0
        for t in range(end - 1, start - 1, -1):
            if mask[t]:
                value = float(values[t])
                advantage = float(rewards[t]) + gamma * following - value + gamma * lambd * advantage
                advantages[t], returns[t], following = advantage, advantage + value, value
    return advantages, returns


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("lambd", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("lengths", [[0], [1], [64, 0, 3], [2, 1, 1, 33], [5, 17, 64, 31, 0, 8]])
def test_doubling_equals_the_loop(lengths: list[int], gamma: float, lambd: float) -> None:
    generator = torch.Generator().manual_seed(len(lengths))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    count = int(offsets[-1])
    rewards, values = torch.randn(2, count, generator=generator, dtype=torch.float64)
    mask = torch.rand(count, generator=generator) < 0.7
    advantages, returns = gae(rewards, values, mask, offsets, gamma=gamma, lambd=lambd)
    expected = by_hand(rewards, values, mask, offsets, gamma, lambd)
    assert advantages.tolist() == pytest.approx(expected[0], abs=1e-10)
    assert returns.tolist() == pytest.approx(expected[1], abs=1e-10)
    no_values = by_hand(rewards, torch.zeros_like(values), mask, offsets, gamma, 1.0)[0]
    actual = discounted_returns(rewards, mask, offsets, gamma=gamma)
    assert actual.tolist() == pytest.approx(no_values, abs=1e-10)


def test_long_row_is_exact() -> None:
    count, gamma = 40_000, 0.999
    rewards = torch.zeros(count, dtype=torch.float64)
    rewards[-1] = 1.0
    returns = discounted_returns(rewards, torch.ones(count, dtype=torch.bool), torch.tensor([0, count]), gamma=gamma)
    assert float(returns[0]) == pytest.approx(gamma ** (count - 1), rel=1e-9)
    assert float(returns[-2]) == pytest.approx(gamma, rel=1e-12)


def test_reward_falls_on_the_last_unmasked_token_and_the_penalty_on_every_one() -> None:
    mask = torch.tensor([1, 1, 0, 0, 0, 1], dtype=torch.bool)  # rows of 3, 2 (all masked), 0 and 1 tokens
    penalty = torch.tensor([0.1, 0.2, 0.0, 0.0, 0.0, 0.3])
    offsets = torch.tensor([0, 3, 5, 5, 6])
    inputs = AdvantageInputs(torch.tensor([1.0, 7.0, 8.0, 2.0]), mask, offsets, penalty, {})
    assert token_rewards(inputs).tolist() == pytest.approx([-0.1, 0.8, 0, 0, 0, 1.7])


def test_lambda_zero_is_the_one_step_difference_and_one_is_return_minus_value() -> None:
    rewards, values = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.25, 0.75])
    every, offsets = torch.ones(3, dtype=torch.bool), torch.tensor([0, 3])
    one_step, _ = gae(rewards, values, every, offsets, gamma=0.5, lambd=0.0)
    assert one_step.tolist() == pytest.approx([0.5 * 0.25 - 0.5, 0.5 * 0.75 - 0.25, 1 - 0.75])
    whole, returns = gae(rewards, values, every, offsets, gamma=0.5, lambd=1.0)
    assert whole.tolist() == pytest.approx([0.25 - 0.5, 0.5 - 0.25, 0.25])
    assert returns.tolist() == pytest.approx([0.25, 0.5, 1.0])
