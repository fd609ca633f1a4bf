"""Each algorithm against numbers computed by peers' own functions, through the public padded functions.

verl's gpg is RLOO's loss, and TRL's luspo on sequences is GSPO's loss with token sums. What peers have and this package
has not is in `test_peer_others`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peer_cases import Case, assert_close, cases, flat, padded, padded_offsets
from torch import Tensor

from relax_engine import algorithms as A
from relax_engine.algorithms.gspo import sequence_ratio
from relax_engine.algorithms.returns import gae
from relax_engine.algorithms.value import value_error
from relax_engine.backends.megatron.log_probs import VocabSlice, token_log_probs

VERL_REDUCTIONS: dict[str, dict[str, Any]] = {
    "token-mean": {"how": "token_mean"},
    "seq-mean-token-mean": {"how": "sample_mean"},
    "seq-mean-token-sum-norm": {"how": "constant", "constant_length": 7},
}
TRL_REDUCTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"how": "sample_mean"},
    "sapo": {"how": "sample_mean"},
    "bnpo": {"how": "token_mean"},
    "dapo": {"how": "token_mean"},
    "cispo": {"how": "token_mean"},
    "dr_grpo": {"how": "constant", "constant_length": 7},
    "luspo": {"how": "constant", "constant_length": 1},
}


def loss_and_gradient(
    name: str, log_prob: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: Any, reduction: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    leaf = log_prob.clone().requires_grad_()
    output = A.policy_loss(A.get(name), leaf, old, advantages, mask, config)
    loss = A.reduce(output.per_token, mask, **reduction)
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad, output.metrics


def check_verl(case: Case, name: str, mode: str | None = None) -> None:
    inputs, expected = case["inputs"], case["expected"]
    mode = mode or inputs["loss_agg_mode"]
    config = SimpleNamespace(eps_clip=inputs["clip_ratio_low"], eps_clip_high=inputs["clip_ratio_high"])
    loss, gradient, metrics = loss_and_gradient(
        name,
        padded(inputs["log_prob"]),
        padded(inputs["old_log_prob"]),
        padded(inputs["advantages"]),
        padded(inputs["response_mask"]),
        config,
        VERL_REDUCTIONS[mode],
    )
    # verl's sum-norm divides by the length only; ours, as in Dr. GRPO's paper, by the number of samples too
    scale = len(inputs["log_prob"]) if mode == "seq-mean-token-sum-norm" else 1
    assert_close(scale * loss, expected["loss"])
    assert_close(scale * gradient, padded(expected["grad_log_prob"]))
    if name == "gspo":
        assert_close(metrics["pg_clipfrac"], expected["metrics"]["actor/pg_clipfrac"])


@cases("verl", "policy_loss/gspo")
def test_verl_gspo(case: Case) -> None:
    check_verl(case, "gspo", "seq-mean-token-mean")  # whatever the mode, this is what verl does for GSPO


@cases("verl", "policy_loss/sapo")
def test_verl_sapo(case: Case) -> None:
    check_verl(case, "sapo", "seq-mean-token-mean")


@cases("verl", "policy_loss/cispo")
def test_verl_cispo(case: Case) -> None:
    check_verl(case, "cispo")


@cases("verl", "policy_loss/gpg")
def test_verl_gpg_is_the_loss_of_rloo(case: Case) -> None:
    check_verl(case, "rloo")


@cases("slime", "policy_loss/cispo")
def test_slime_cispo(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    log_probs = padded(inputs["log_probs"]).requires_grad_()
    mask = torch.ones(log_probs.shape)
    config = SimpleNamespace(eps_clip=inputs["eps_clip"], eps_clip_high=inputs["eps_clip_high"])
    old = log_probs.detach() + padded(inputs["ppo_kl"])
    output = A.policy_loss(A.get("cispo"), log_probs, old, padded(inputs["advantages"]), mask, config)
    output.per_token.sum().backward()
    assert_close(output.per_token.detach(), padded(expected["pg_losses"]))
    assert_close(output.metrics["pg_clipfrac"], padded(expected["clipfrac"]).mean())
    assert log_probs.grad is not None
    assert_close(log_probs.grad, padded(expected["grad_log_probs_of_sum"]))


@cases("slime", "gspo_kl")
def test_slime_gspo_ratio(case: Case) -> None:
    inputs = case["inputs"]
    lengths = torch.tensor([0, *(len(row) for row in inputs["log_probs"])])
    ratio = sequence_ratio(
        flat(inputs["log_probs"]), flat(inputs["old_log_probs"]), flat(inputs["loss_masks"]), lengths.cumsum(0)
    )
    assert_close(-ratio.log(), torch.tensor(case["expected"]["ppo_kl_concat"]))


def check_trl(case: Case, name: str, **flags: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    mask, reference = padded(inputs["completion_mask"]), padded(inputs["ref_log_prob"])
    leaf, old = padded(inputs["log_prob"]).requires_grad_(), padded(inputs["old_log_prob"])
    config = SimpleNamespace(
        eps_clip=inputs["epsilon_low"], eps_clip_high=inputs["epsilon_high"], eps_clip_c=inputs["delta"]
    )
    vars(config).update(flags)
    output = A.policy_loss(A.get(name), leaf, old, torch.tensor(inputs["advantages"]), mask, config)
    # TRL weights its KL term by the importance ratio, at the level of the loss's own ratio
    if inputs["importance_sampling_level"] == "sequence":
        ratio = sequence_ratio(leaf.reshape(-1), old.reshape(-1), mask.reshape(-1), padded_offsets(mask))
        ratio = ratio.reshape(mask.shape)
    else:
        ratio = (leaf - old).exp()
    kl = A.kl_penalty(leaf, reference, "k3", ratio=ratio)
    loss = A.reduce(output.per_token + inputs["beta"] * kl, mask, **TRL_REDUCTIONS[inputs["loss_type"]])
    loss.backward()
    assert leaf.grad is not None
    assert_close(loss.detach(), expected["loss"])
    assert_close(leaf.grad, padded(expected["grad_log_prob"]))


@cases("trl", "policy_loss/trl_sequence")
def test_trl_sequence_ratio_is_gspo(case: Case) -> None:
    check_trl(case, "gspo")


@cases("trl", "policy_loss/trl_sapo")
def test_trl_sapo(case: Case) -> None:
    inputs = case["inputs"]
    check_trl(case, "sapo", sapo_tau_pos=inputs["sapo_temperature_pos"], sapo_tau_neg=inputs["sapo_temperature_neg"])


@cases("trl", "policy_loss/trl_cispo")
def test_trl_cispo(case: Case) -> None:
    """TRL's bound is the weight itself, and it has no lower one."""
    check_trl(case, "cispo", eps_clip=1.0, eps_clip_high=case["inputs"]["epsilon_high"] - 1.0)


def advantages_of(name: str, case: Case, mask: Tensor, *, groups: Any = None, **flags: Any) -> A.Advantages:
    """Advantages of outcome rewards, from the reward stage on."""
    config = SimpleNamespace(**flags)
    raw = case["inputs"].get("rewards")
    if raw is None:
        raw = padded(case["inputs"]["token_level_rewards"]).sum(-1).tolist()
    rewards = A.normalize_rewards(A.get(name), raw, np.arange(len(raw)) if groups is None else groups, config)
    return A.compute_advantages(A.get(name), rewards=rewards, mask=mask, config=config)


@cases("verl", "rloo_adv")
def test_verl_rloo(case: Case) -> None:
    mask, groups = padded(case["inputs"]["response_mask"]), case["inputs"]["index"]
    actual = advantages_of("rloo", case, mask, groups=groups).advantages
    expected = padded(case["expected"]["advantages"])
    alone = torch.tensor(np.bincount(groups)[groups] == 1)  # verl keeps the raw reward of a group of one
    assert_close(actual[~alone], expected[~alone])
    assert not actual[alone].any()


@cases("verl", "rf++_baseline_adv")
def test_verl_reinforce_plus_plus_baseline(case: Case) -> None:
    inputs = case["inputs"]
    mask, groups = padded(inputs["response_mask"]), inputs["index"]
    spec, config = A.get("reinforce_plus_plus_baseline"), SimpleNamespace(normalize_advantages=True)
    rewards = A.normalize_rewards(spec, inputs["rewards"], groups, config)
    alone = np.bincount(groups)[groups] == 1  # verl keeps the raw reward of a group of one
    rewards[alone] = np.asarray(inputs["rewards"])[alone]
    actual = A.compute_advantages(spec, rewards=rewards, mask=mask, config=config).advantages
    assert_close(actual, padded(case["expected"]["advantages"]))


@cases("verl", "rf++_adv")
def test_verl_reinforce_plus_plus(case: Case) -> None:
    inputs = case["inputs"]
    mask = padded(inputs["response_mask"])
    actual = advantages_of("reinforce_plus_plus", case, mask, gamma=inputs["gamma"], normalize_advantages=True)
    assert_close(actual.advantages[mask > 0], padded(case["expected"]["advantages"])[mask > 0])
    assert_close(actual.returns[mask > 0], padded(case["expected"]["returns"])[mask > 0])


def slime_advantages(name: str, case: Case, **flags: Any) -> A.Advantages:
    """slime takes the KL tensor itself: k1 of log-probs equal to it against a reference of 0."""
    inputs = case["inputs"]
    kl, mask = padded(inputs["kl"]), padded(inputs["loss_masks"])
    return A.compute_advantages(
        A.get(name),
        rewards=inputs["rewards"],
        mask=mask,
        log_probs=kl,
        ref_log_probs=torch.zeros_like(kl),
        config=SimpleNamespace(kl_coef=inputs["kl_coef"], **flags),
    )


@cases("slime", "rf++_returns")
def test_slime_reinforce_plus_plus(case: Case) -> None:
    actual = slime_advantages("reinforce_plus_plus", case, gamma=case["inputs"]["gamma"])
    assert_close(actual.returns, padded(case["expected"]["returns"]))


@pytest.mark.parametrize("name", ["reinforce_plus_plus_baseline", "grpo", "sapo", "cispo"])
@cases("slime", "rf++_baseline")
def test_slime_kl_in_broadcast_advantages(case: Case, name: str) -> None:
    """slime has this formula for REINFORCE++ with baseline; here it is that of every broadcast advantage."""
    assert_close(slime_advantages(name, case).advantages, padded(case["expected"]["advantages"]))


@cases("slime", "gae")
def test_slime_gae(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    offsets = torch.tensor([0, *(len(row) for row in inputs["values"])]).cumsum(0)
    rewards = flat(inputs["token_rewards"])
    advantages, returns = gae(
        rewards,
        flat(inputs["values"]),
        torch.ones(rewards.shape, dtype=torch.bool),
        offsets,
        gamma=inputs["gamma"],
        lambd=inputs["lambd"],
    )
    assert_close(advantages.float(), flat(expected["advantages"]))
    assert_close(returns.float(), flat(expected["returns"]))


@cases("verl", "gae")
def test_verl_gae_skips_masked_tokens_and_whitens(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    mask = padded(inputs["response_mask"])
    actual = A.compute_advantages(
        A.get("ppo"),
        rewards=padded(inputs["token_level_rewards"]).sum(-1),
        mask=mask,
        values=padded(inputs["values"]),
        config=SimpleNamespace(gamma=inputs["gamma"], lambd=inputs["lam"], normalize_advantages=True),
    )
    assert_close(actual.advantages[mask > 0], padded(expected["advantages_whitened"])[mask > 0])
    assert_close(actual.returns[mask > 0], padded(expected["returns"])[mask > 0])


@cases("verl", "value_loss")
def test_verl_value_loss(case: Case) -> None:
    """verl has a factor of 1/2."""
    inputs, expected = case["inputs"], case["expected"]
    mask = padded(inputs["response_mask"])
    error, clipped = value_error(
        padded(inputs["vpreds"]), padded(inputs["values"]), padded(inputs["returns"]), clip=inputs["cliprange_value"]
    )
    assert_close(0.5 * A.reduce(error, mask, "token_mean"), expected["vf_loss"])
    assert_close(A.reduce(clipped, mask, "token_mean"), expected["vf_clipfrac"])


@cases("slime", "logprob_entropy")
def test_slime_log_probs_and_entropy(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    logits = padded(inputs["logits"])
    vocabulary = VocabSlice(0, logits.shape[1], None)
    log_probs, entropy = token_log_probs(logits, torch.tensor(inputs["tokens"]), vocabulary, entropy=True)
    assert_close(log_probs, flat(expected["log_probs"]))
    assert_close(entropy, torch.tensor(expected["entropy"]))
