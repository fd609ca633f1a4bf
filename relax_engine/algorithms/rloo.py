"""RLOO: REINFORCE, with the mean reward of the other samples of the group as the baseline.

`A = r - mean(rewards of the others) = G / (G - 1) (r - mean(group))`, the same for all tokens; the
loss is `-A log_prob`. Its gradient is unbiased, but only for data of the current weights and when
every token counts the same. Source: arXiv 2402.14740.
"""

from __future__ import annotations

import numpy as np

from relax_engine.algorithms.advantages import broadcast
from relax_engine.algorithms.grouping import center, group_mean
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec, Constraint, PolicyTerms, TokenLoss


def leave_one_out(rewards: np.ndarray, group_ids: np.ndarray, settings: AlgorithmSettings) -> np.ndarray:
    """The reward minus the mean of the group's other rewards, f64 `[rows]`; 0 in a group of one."""
    _, size = group_mean(rewards, group_ids)
    return center(rewards, group_ids) * size / np.maximum(size - 1.0, 1.0)


def reinforce_loss(terms: PolicyTerms, settings: AlgorithmSettings) -> TokenLoss:
    """`-A log_prob`: no ratio, no clip."""
    return TokenLoss(-terms.advantages * terms.log_probs, {})


SPEC = AlgorithmSpec(
    name="rloo",
    summary="leave-one-out baseline, plain REINFORCE",
    reward_stage=leave_one_out,
    advantage=broadcast,
    policy_loss=reinforce_loss,
    forbids_stale=True,
    needs_whole_groups=True,
    why_no_kl_coef="compares whole rewards, before the reference's log-probs are there: its baseline would "
    "lack the penalty",
    min_group_size=2,
    requires_token_sums=True,
    requires_rewards_normalization=True,
    normalize_advantages="forbidden",
    flags=(),
    constraints=(
        Constraint(
            field="num_steps_per_rollout",
            holds=lambda steps: steps == 1,
            reason="has no importance ratio, so a second step on the same samples would be biased",
            fix="--num-steps-per-rollout 1, or leave out --global-batch-size",
            default=1,
        ),
    ),
)
