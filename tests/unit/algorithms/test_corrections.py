"""Importance weights, sequence masking and mismatch: peers' numbers and closed forms."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peer_cases import Case, assert_close, cases, flat, padded
from torch import Tensor

from relax_engine.algorithms import AlgorithmSettings, importance_weights
from relax_engine.algorithms.corrections import importance_correction, off_policy_sequence_mask
from relax_engine.algorithms.corrections.mismatch import mismatch_metrics, step_sample_size


def ragged_offsets(rows: list[list[float]]) -> Tensor:
    return torch.tensor([0, *[len(row) for row in rows]]).cumsum(0)


def _slime(case: Case, mode: str) -> None:
    inputs, expected = case["inputs"], case["expected"]
    train = flat(inputs["train_log_probs"])
    settings = AlgorithmSettings(tis_clip_low=inputs["tis_clip_low"], tis_clip=inputs["tis_clip"], tis_mode=mode)
    mask, offsets = torch.ones(train.shape, dtype=torch.bool), ragged_offsets(inputs["train_log_probs"])
    correction = importance_correction(train, flat(inputs["rollout_log_probs"]), mask, offsets, settings)
    assert_close(torch.tensor(inputs["pg_loss"]) * correction.weights, torch.tensor(expected["pg_loss"]))
    for name in ("tis", "tis_clipfrac", "tis_abs"):
        assert_close(correction.metrics[name], torch.tensor(expected[name]))


@cases("slime", "tis/vanilla_tis_function")
def test_slime_tis(case: Case) -> None:
    _slime(case, "truncate")


@cases("slime", "tis/icepop_function")
def test_slime_icepop(case: Case) -> None:
    _slime(case, "mask")


@cases("verl", "tis_weights")
def test_verl_weights(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    log_ratio, mask = padded(inputs["log_ratio"]), padded(inputs["response_mask"])
    flags = {
        "tis_clip": inputs["threshold"],
        "tis_level": inputs["level"],
        "tis_batch_normalize": inputs["batch_normalize"],
    }
    zeros = torch.zeros_like(log_ratio)
    weights, keep, metrics = importance_weights(log_ratio, zeros, mask, SimpleNamespace(**flags))
    assert_close(weights, padded(expected["weights"]))
    assert keep.equal(mask.bool())
    assert_close(metrics["tis"], expected["metrics"]["rollout_is_mean"])
    # verl takes the effective sample size of weights that are bounded from below, too.
    bounded = SimpleNamespace(**flags, tis_clip_low=1.0 / inputs["threshold"])
    ess = importance_weights(log_ratio, zeros, mask, bounded)[2]["tis_ess"]
    assert_close(ess, expected["metrics"]["rollout_is_eff_sample_size"])


@cases("slime", "opsm")
def test_slime_sequence_mask(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    stays = off_policy_sequence_mask(
        flat(inputs["log_probs"]),
        flat(inputs["old_log_probs"]),
        flat(inputs["advantages"]),
        flat(inputs["loss_masks"]).bool(),
        ragged_offsets(inputs["log_probs"]),
        delta=inputs["opsm_delta"],
    )
    assert_close(stays.float(), torch.tensor(expected["mask"]))


def test_a_sequence_mask_needs_both_conditions_and_counts_unmasked_tokens_only() -> None:
    offsets = torch.tensor([0, 2, 4, 6])
    old, new = torch.zeros(6), torch.tensor([-0.3, 9.0, -0.3, 9.0, -0.1, -0.1])
    mask = torch.tensor([True, False, True, False, True, True])
    advantages = torch.tensor([-1.0, 0.0, 1.0, 0.0, -1.0, -1.0])
    stays = off_policy_sequence_mask(new, old, advantages, mask, offsets, delta=0.2)
    # Row 1 is bad and 0.3 away, row 2 is good, row 3 is bad but near; masked tokens have no advantage.
    assert (stays & mask).tolist() == [False, False, True, False, True, True]


TRAIN = torch.tensor([-1.0, -1.0, -3.0, -0.5], requires_grad=True)
ROLLOUT = torch.tensor([-1.0, -2.0, -1.0, -0.5])
RATIOS = [1.0, math.e, math.exp(-2), 1.0]


def correction(**settings: Any) -> Any:
    flags = {"tis_clip": 2.0, "tis_clip_low": 0.5, **settings}
    mask = torch.tensor([True, True, True, False])
    return importance_correction(TRAIN, ROLLOUT, mask, torch.tensor([0, 2, 4]), AlgorithmSettings(**flags))


def test_truncation_cuts_and_masking_drops() -> None:
    cut, dropped = correction(), correction(tis_mode="mask")
    assert cut.weights.tolist() == pytest.approx([1.0, 2.0, 0.5, 1.0])
    assert cut.keep.tolist() == [True, True, True, False]
    assert dropped.weights.tolist() == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert dropped.keep.tolist() == [True, False, False, False]
    for each in (cut, dropped):
        assert not each.weights.requires_grad
        assert each.metrics["tis"].tolist() == pytest.approx(RATIOS)
        assert each.metrics["tis_clipfrac"].tolist() == [0.0, 1.0, 1.0, 0.0]


def test_levels_share_one_weight_over_a_response() -> None:
    product, mean = correction(tis_level="sequence", tis_clip=9.0), correction(tis_level="geometric", tis_clip=9.0)
    assert product.metrics["tis"].tolist() == pytest.approx([math.e, math.e, math.exp(-2), math.exp(-2)])
    assert mean.metrics["tis"].tolist() == pytest.approx([math.e**0.5, math.e**0.5, math.exp(-2), math.exp(-2)])


def test_bounds_must_be_ordered() -> None:
    with pytest.raises(ValueError, match=r"--tis-clip-low 3\.0 and --tis-clip 2\.0"):
        correction(tis_clip_low=3.0)


def test_an_extreme_ratio_stays_finite() -> None:
    mask, offsets = torch.tensor([True]), torch.tensor([0, 1])
    settings = AlgorithmSettings(tis_clip=1e30)
    weights = importance_correction(torch.tensor([0.0]), torch.tensor([-1e4]), mask, offsets, settings).weights
    assert weights.item() == pytest.approx(math.exp(20), rel=1e-5)


def test_packed_and_padded_weights_are_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 0, 5]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    train, rollout = torch.randn(2, 8, generator=generator)
    mask = torch.tensor([1, 0, 1, 1, 1, 1, 0, 1])

    def pad(values: Tensor) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(values.split(lengths)), batch_first=True)

    for level in ("token", "sequence", "geometric"):
        for normalize in (False, True):
            config = SimpleNamespace(tis_level=level, tis_mode="mask", tis_clip=1.5, tis_batch_normalize=normalize)
            packed = importance_weights(train, rollout, mask, config, offsets=offsets)
            rows = importance_weights(pad(train), pad(rollout), pad(mask), config)
            assert rows[0].equal(pad(packed[0]))
            assert rows[1].equal(pad(packed[1]))
            assert rows[2].keys() == packed[2].keys()
            for name, value in rows[2].items():
                assert_close(value, packed[2][name])
    with pytest.raises(ValueError, match="need offsets"):
        importance_weights(train, rollout, mask, config)


def test_mismatch_of_a_known_batch() -> None:
    ratios = torch.arange(1, 102) / 50.0  # 0.02 .. 2.02, so that the quantiles are the ratios at 1, 10, 50, ... percent
    order = torch.randperm(101, generator=torch.Generator().manual_seed(1))
    train = torch.cat([ratios[order].log(), torch.tensor([99.0])])
    mask = torch.arange(102) < 101
    metrics = mismatch_metrics(train, torch.zeros(102), mask)
    for name, value in {
        "min": 0.02,
        "p01": 0.04,
        "p10": 0.22,
        "p50": 1.02,
        "p90": 1.82,
        "p99": 2.0,
        "max": 2.02,
    }.items():
        assert metrics[f"mismatch/ratio/{name}"].item() == pytest.approx(value)
    assert metrics["mismatch/kl"].item() == pytest.approx(-ratios.log().mean().item(), rel=1e-5)
    assert metrics["mismatch/k3_kl"].item() == pytest.approx((ratios - 1 - ratios.log()).mean().item(), rel=1e-5)
    assert metrics["mismatch/ess"].item() == pytest.approx((ratios.mean() ** 2 / ratios.square().mean()).item())
    apart = torch.tensor([0.4, 0.6, 1.0, 1.9, 2.1]).log()
    assert mismatch_metrics(apart, torch.zeros(5), torch.ones(5, dtype=torch.bool))[
        "mismatch/beyond_2"
    ].item() == pytest.approx(0.4)
    assert mismatch_metrics(train, train, torch.zeros(102, dtype=torch.bool)) == {}


def test_sample_size_of_a_step() -> None:
    one_token_of_four = {"tis_weight/sum": 2.0, "tis_weight_square/sum": 4.0, "loss_tokens/sum": 4.0}
    assert step_sample_size(one_token_of_four) == {"tis_ess": 0.25}
    assert step_sample_size({"loss_tokens/sum": 4.0}) == {}
