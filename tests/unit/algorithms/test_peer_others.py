"""Algorithms that peers have and this package has not, written as a user would write them, against the peers' numbers.

GMPO, OPO, pass@k and ReMax are a reward stage, an advantage or a loss of their own in an `AlgorithmSpec`. The rest is
small: an estimator by another name, a name that nobody knows, LUSPO on tokens, and a division of rows among ranks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from peer_cases import Case, assert_close, cases, padded, padded_offsets
from test_peer_algorithms import check_trl, loss_and_gradient
from torch import Tensor

from relax_engine import algorithms as A
from relax_engine.algorithms.grouping import standardize
from relax_engine.algorithms.reduction import row_ids, row_sums
from relax_engine.algorithms.spec import AdvantageInputs, PolicyTerms, TokenLoss
from relax_engine.components.train_rank import row_shares


def geometric_mean_loss(terms: PolicyTerms, settings: A.AlgorithmSettings) -> TokenLoss:
    """GMPO (arXiv 2507.20673): log-ratios are clipped token by token, then averaged over the response."""
    log_ratio, sign = terms.log_probs - terms.old_log_probs, terms.advantages.sign()
    clipped = log_ratio.clamp(-settings.eps_clip, settings.clip_high)
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
    tokens = row_sums(terms.mask.float(), terms.offsets) + 1e-8
    means = [row_sums(values * terms.mask, terms.offsets) / tokens for values in (pessimistic, terms.advantages)]
    return TokenLoss((-means[1] * means[0].exp())[row_ids(terms.offsets)], {})


@cases("verl", "policy_loss/geo_mean")
def test_gmpo(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    A.register(spec := dataclasses.replace(A.get("gspo"), name=case["id"], policy_loss=geometric_mean_loss))
    loss, gradient, _ = loss_and_gradient(
        spec.name,
        padded(inputs["log_prob"]),
        padded(inputs["old_log_prob"]),
        padded(inputs["advantages"]),
        padded(inputs["response_mask"]),
        A.AlgorithmSettings(eps_clip=inputs["clip_ratio_low"], eps_clip_high=inputs["clip_ratio_high"]),
        {"how": "sample_mean"},
    )
    assert_close(loss, expected["loss"])
    assert_close(gradient, padded(expected["grad_log_prob"]))


def length_weighted(inputs: AdvantageInputs, settings: A.AlgorithmSettings) -> dict[str, Tensor]:
    """OPO (arXiv 2505.23585): the baseline of a group is the mean reward of its tokens."""
    _, group = inputs.columns["group_index"].unique(return_inverse=True)
    tokens = row_sums(inputs.mask.float(), inputs.offsets)
    sums = [torch.zeros(int(group.max()) + 1).index_add(0, group, v) for v in (inputs.rewards * tokens, tokens)]
    alone = torch.bincount(group)[group] == 1
    advantages = inputs.rewards - (sums[0] / sums[1])[group].where(~alone, torch.zeros(()))
    spread = advantages[row_ids(inputs.offsets)] * inputs.mask
    return {"advantages": spread, "returns": spread}


@cases("verl", "opo_adv")
def test_opo(case: Case) -> None:
    inputs = case["inputs"]
    mask = padded(inputs["response_mask"])
    spec = dataclasses.replace(A.get("grpo"), advantage=length_weighted, advantage_columns=("group_index",))
    columns = {
        "rewards": torch.tensor(inputs["rewards"]).float(),
        "group_index": torch.tensor(inputs["index"]),
        "loss_masks": mask.reshape(-1),
    }
    made = A.training_columns(spec, A.AlgorithmSettings(), columns, padded_offsets(mask))
    assert_close(made["advantages"].reshape(mask.shape), padded(case["expected"]["advantages"]))


def best_only(rewards: np.ndarray, group_ids: np.ndarray, settings: A.AlgorithmSettings) -> np.ndarray:
    """pass@k (arXiv 2503.19595): the best of a group gets its lead over the second, in standard deviations."""
    standard, result = standardize(rewards, group_ids), np.zeros(len(rewards))
    for group in np.unique(group_ids):
        rows = np.flatnonzero(group_ids == group)
        second, best = rows[np.argsort(standard[rows], kind="stable")][-2:]
        result[best] = standard[best] - standard[second]
    return result


@cases("verl", "grpo_passk_adv")
def test_pass_at_k(case: Case) -> None:
    inputs = case["inputs"]
    spec = dataclasses.replace(A.get("grpo"), reward_stage=best_only)
    rewards = A.normalize_rewards(spec, inputs["rewards"], inputs["index"])
    actual = A.compute_advantages(spec, rewards=rewards, mask=padded(inputs["response_mask"]))
    assert_close(actual.advantages, padded(case["expected"]["advantages"]))


@cases("verl", "remax_adv")
def test_remax(case: Case) -> None:
    """ReMax (arXiv 2310.10505): the reward minus that of the greedy response, as a return of every token."""
    inputs = case["inputs"]
    mask = padded(inputs["response_mask"])
    baselines = torch.tensor(inputs["reward_baselines"])
    for name, less in (("returns", torch.zeros(len(mask))), ("advantages", baselines)):
        rewards = padded(inputs["token_level_rewards"]).sum(-1) - less
        actual: Any = getattr(A.compute_advantages(A.get("reinforce_plus_plus"), rewards=rewards, mask=mask), name)
        # verl's returns also stand on masked tokens, where nothing reads them.
        assert_close(actual[mask > 0], padded(case["expected"][name])[mask > 0])


@cases("trl", "policy_loss/trl_luspo")
def test_luspo_on_tokens(case: Case) -> None:
    """PPO's loss with token sums."""
    check_trl(case, "grpo")


@cases("verl", "kl")
def test_estimators_without_a_flag(case: Case) -> None:
    inputs = case["inputs"]
    arguments = padded(inputs["log_prob"]), padded(inputs["ref_log_prob"])
    if "raises" in case["expected"]:
        with pytest.raises(ValueError, match="unknown KL estimator"):
            A.kl_penalty(*arguments, inputs["kind"])
    else:
        kind = "k1" if inputs["kind"] == "abs" else inputs["kind"]
        actual = A.kl_penalty(*arguments, kind)
        assert_close(actual.abs() if inputs["kind"] == "abs" else actual, padded(case["expected"]["kl"]))


@cases("verl", "seqlen_balance")
def test_rows_are_divided_as_well_as_by_karmarkar_karp(case: Case) -> None:
    inputs, lengths = case["inputs"], np.array(case["inputs"]["seqlens"])
    parts = row_shares(lengths, inputs["k"], balance=True)
    assert sorted(int(lengths[part].sum()) for part in parts) == sorted(case["expected"]["sums"])
