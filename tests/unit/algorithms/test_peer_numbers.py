"""Our formulas against numbers computed by peers' own functions; documented differences are asserted."""

from __future__ import annotations

import numpy as np
import torch
from peer_cases import Case, assert_close, cases, flat, padded, padded_offsets
from torch import Tensor

from relax_engine.algorithms import (
    AlgorithmSettings,
    LossInputs,
    get,
    kl_penalty,
    loss_weights,
    make_policy_loss,
    normalize_rewards,
    training_columns,
)
from relax_engine.algorithms.advantages import whiten
from relax_engine.algorithms.loss import ppo_clip

VERL_REDUCTIONS = {
    "token-mean": ("token_mean", None),
    "seq-mean-token-mean": ("sample_mean", None),
    "seq-mean-token-sum-norm": ("constant", 7),
}
TRL_REDUCTIONS = {
    "trl_grpo": ("sample_mean", None),
    "trl_bnpo": ("token_mean", None),
    "trl_dapo": ("token_mean", None),
    "trl_dr_grpo": ("constant", 7),
}


@cases("slime", "kl")
def test_slime_kl(case: Case) -> None:
    inputs = case["inputs"]
    actual = kl_penalty(padded(inputs["log_probs"]), padded(inputs["log_probs_base"]), inputs["kind"])
    assert_close(actual, padded(case["expected"]["kl"]))


@cases("slime", "kl_unbiased")
def test_slime_unbiased_kl(case: Case) -> None:
    inputs = case["inputs"]
    actual = kl_penalty(
        padded(inputs["log_probs"]),
        padded(inputs["log_probs_base"]),
        inputs["kind"],
        ratio=padded(inputs["importance_ratio"]),
    )
    assert_close(actual, padded(case["expected"]["kl"]))


@cases("slime", "policy_loss/ppo_clip")
def test_slime_ppo_clip(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    ppo_kl = padded(inputs["ppo_kl"]).requires_grad_()
    loss, clipped = ppo_clip(
        (-ppo_kl).exp(),
        padded(inputs["advantages"]),
        eps_low=inputs["eps_clip"],
        eps_high=inputs["eps_clip_high"],
        eps_c=inputs["eps_clip_c"],
    )
    loss.sum().backward()
    assert_close(loss.detach(), padded(expected["pg_losses"]))
    assert_close(clipped, padded(expected["clipfrac"]))
    assert ppo_kl.grad is not None
    assert_close(ppo_kl.grad, padded(expected["grad_ppo_kl_of_sum"]))


def _step(
    log_prob: Tensor, mask: Tensor, settings: AlgorithmSettings, columns: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Loss, metrics and gradient of one padded batch through the whole objective."""
    offsets = padded_offsets(mask)
    weights = loss_weights(
        mask.reshape(-1), offsets, how=settings.reduction, constant_length=settings.loss_constant_length
    )
    compact = {name: value.reshape(-1) for name, value in columns.items()}
    compact |= {"loss_masks": mask.reshape(-1), "loss_weights": weights, "rollout_log_probs": compact["log_probs"]}
    leaf = log_prob.clone().requires_grad_()
    loss, metrics = make_policy_loss(settings)(leaf.reshape(-1), None, LossInputs(compact, offsets))
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), metrics, leaf.grad


def _reduction_flags(how: str, constant_length: int | None) -> dict[str, int | bool | None]:
    return {"calculate_per_token_loss": how == "token_mean", "loss_constant_length": constant_length}


@cases("verl", "policy_loss/vanilla")
def test_verl_ppo_loss(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    settings = AlgorithmSettings(
        eps_clip=inputs["clip_ratio_low"],
        eps_clip_high=inputs["clip_ratio_high"],
        eps_clip_c=inputs["clip_ratio_c"],
        **_reduction_flags(*VERL_REDUCTIONS[inputs["loss_agg_mode"]]),
    )
    columns = {"log_probs": padded(inputs["old_log_prob"]), "advantages": padded(inputs["advantages"])}
    loss, metrics, gradient = _step(padded(inputs["log_prob"]), padded(inputs["response_mask"]), settings, columns)
    assert_close(loss, expected["loss"])
    assert_close(gradient, padded(expected["grad_log_prob"]))
    if inputs["loss_agg_mode"] == "token-mean":  # verl's metrics are token means whatever the loss is
        assert_close(metrics["ppo_kl"], expected["metrics"]["actor/ppo_kl"])
        assert_close(metrics["pg_clipfrac"], expected["metrics"]["actor/pg_clipfrac"])


def _trl(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    mask = padded(inputs["completion_mask"])
    settings = AlgorithmSettings(
        eps_clip=inputs["epsilon_low"],
        eps_clip_high=inputs["epsilon_high"],
        eps_clip_c=inputs["delta"],
        use_kl_loss=inputs["beta"] != 0,
        kl_loss_coef=inputs["beta"],
        kl_loss_type="k3",
        use_unbiased_kl=True,  # TRL weights its KL term by the importance ratio
        **_reduction_flags(*TRL_REDUCTIONS["trl_" + inputs["loss_type"]]),
    )
    columns = {
        "log_probs": padded(inputs["old_log_prob"]),
        "ref_log_probs": padded(inputs["ref_log_prob"]),
        "advantages": torch.tensor(inputs["advantages"])[:, None].expand_as(mask),
    }
    loss, _, gradient = _step(padded(inputs["log_prob"]), mask, settings, columns)
    assert_close(loss, expected["loss"])
    assert_close(gradient, padded(expected["grad_log_prob"]))


@cases("trl", "policy_loss/trl_grpo")
def test_trl_grpo(case: Case) -> None:
    _trl(case)


@cases("trl", "policy_loss/trl_dapo")
def test_trl_dapo(case: Case) -> None:
    _trl(case)


@cases("trl", "policy_loss/trl_bnpo")
def test_trl_bnpo(case: Case) -> None:
    _trl(case)


@cases("trl", "policy_loss/trl_dr_grpo")
def test_trl_dr_grpo(case: Case) -> None:
    _trl(case)


@cases("verl", "agg_loss")
def test_verl_reductions(case: Case) -> None:
    inputs = case["inputs"]
    losses, mask = padded(inputs["loss_mat"]), padded(inputs["loss_mask"])
    how, length = VERL_REDUCTIONS[inputs["mode"]]
    weights = loss_weights(mask.reshape(-1), padded_offsets(mask), how=how, constant_length=length)
    # verl's sum-norm divides by the length only; ours, as in the paper, by the number of samples too
    per = losses.shape[0] if how == "constant" else 1
    assert_close(per * (weights * losses.reshape(-1)).sum(), case["expected"]["loss"])


@cases("verl", "grpo_adv")
def test_verl_grpo_advantages(case: Case) -> None:
    inputs = case["inputs"]
    mask = padded(inputs["response_mask"])
    spec, settings = (
        get("grpo"),
        AlgorithmSettings(disable_grpo_std_normalization=not inputs["norm_adv_by_std_in_grpo"]),
    )
    rewards = normalize_rewards(spec, inputs["rewards"], inputs["index"], settings)
    columns = {"rewards": rewards, "loss_masks": mask.reshape(-1)}
    actual = training_columns(spec, settings, columns, padded_offsets(mask))["advantages"].reshape(mask.shape)
    expected = padded(case["expected"]["advantages"])
    sizes = np.bincount(inputs["index"])
    alone = torch.tensor([sizes[group] == 1 for group in inputs["index"]])
    assert_close(actual[~alone], expected[~alone])
    # A group of one: verl keeps the raw reward (mean 0, std 1); we give 0, there is nothing to compare with.
    raw = torch.tensor(inputs["rewards"])[:, None] * mask
    without_eps = raw / (1 + 1e-6) if inputs["norm_adv_by_std_in_grpo"] else raw
    assert_close(expected[alone], without_eps[alone])
    assert not actual[alone].any()


@cases("slime", "grpo_returns")
def test_slime_broadcast(case: Case) -> None:
    inputs = case["inputs"]
    lengths = torch.tensor(inputs["kl_lens"])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    columns = {"rewards": torch.tensor(inputs["rewards"]), "loss_masks": torch.ones(int(lengths.sum()))}
    actual = training_columns(get("grpo"), AlgorithmSettings(), columns, offsets)
    assert_close(actual["advantages"], flat(case["expected"]["returns"]))
    assert_close(actual["returns"], flat(case["expected"]["returns"]))


@cases("verl", "masked_whiten")
def test_verl_whitening(case: Case) -> None:
    inputs = case["inputs"]
    mask = padded(inputs["mask"]).bool()
    actual = whiten(padded(inputs["values"]).reshape(-1), mask.reshape(-1)).reshape(mask.shape)
    assert_close(actual[mask], padded(case["expected"]["out"])[mask])
