"""Properties that hold for every algorithm and any batch: lengths 0..64, groups of 1..8, masks, failed rewards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relax_engine import algorithms as A
from relax_engine.algorithms.registry import BUILTIN

PER_TOKEN = ("log_probs", "rollout_log_probs", "ref_log_probs", "values", "current")
CORRECTIONS: list[dict[str, Any]] = [
    {},
    {"use_rollout_logprobs": True},
    {"use_tis": True},
    {"use_tis": True, "tis_level": "sequence", "tis_mode": "mask", "use_opsm": True},
    {"use_tis": True, "tis_level": "geometric", "tis_batch_normalize": True},
    {"use_decoupled_ppo": True, "tis_mode": "mask", "tis_clip_low": 0.5},
]
REDUCTIONS: list[dict[str, Any]] = [{}, {"calculate_per_token_loss": True}, {"loss_constant_length": 32}]


@dataclass
class Rows:
    """Rows of a batch before any of our functions has seen them; per-token entries are lists of arrays."""

    rewards: np.ndarray
    groups: np.ndarray
    samples: np.ndarray
    masks: list[np.ndarray]
    tokens: dict[str, list[np.ndarray]]

    def take(self, order: list[int]) -> Rows:
        return Rows(
            self.rewards[order],
            self.groups[order],
            self.samples[order],
            [self.masks[i] for i in order],
            {name: [rows[i] for i in order] for name, rows in self.tokens.items()},
        )

    def pad(self) -> Rows:
        """Every row as long as the longest, filled with masked garbage."""
        width = max(len(mask) for mask in self.masks)
        garbage = {name: -123.0 for name in self.tokens}

        def fill(rows: list[np.ndarray], value: float) -> list[np.ndarray]:
            return [np.concatenate([row, np.full(width - len(row), value, row.dtype)]) for row in rows]

        return Rows(
            self.rewards,
            self.groups,
            self.samples,
            fill(self.masks, 0),
            {name: fill(rows, garbage[name]) for name, rows in self.tokens.items()},
        )


@st.composite
def batches(draw: st.DrawFn) -> Rows:
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    count = sum(sizes)
    lengths = draw(st.lists(st.integers(0, 64), min_size=count, max_size=count))
    kinds = draw(st.lists(st.sampled_from(["all", "some", "none"]), min_size=count, max_size=count))
    values = st.sampled_from([0.0, 1.0, 0.5, -2.0, math.nan, math.inf])
    equal = draw(st.booleans())  # every group without variance
    rewards = [draw(values)] * count if equal else draw(st.lists(values, min_size=count, max_size=count))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    keep = {"all": 1.0, "some": 0.6, "none": 0.0}
    masks = [(random.random(length) < keep[kind]).astype(np.uint8) for length, kind in zip(lengths, kinds, strict=True)]
    spread = draw(st.sampled_from([0.0, 0.1, 2.0]))
    base = [-random.exponential(1.0, length) for length in lengths]
    tokens = {
        name: [(row + spread * random.standard_normal(len(row))).astype(np.float32) for row in base]
        for name in PER_TOKEN
    }
    groups = np.repeat(np.arange(len(sizes)), sizes)
    shared = draw(st.booleans())  # neighbouring rows of one sample
    samples = np.arange(count) // 2 if shared else np.arange(count)
    return Rows(np.array(rewards), groups, samples, masks, tokens).take(list(random.permutation(count)))


def flags(name: str, reduction: dict[str, Any], correction: dict[str, Any]) -> A.AlgorithmSettings:
    spec = A.get(name)
    return A.AlgorithmSettings(
        advantage_estimator=name,
        kl_coef=0.05 if spec.accepts_kl_coef else 0.0,
        use_kl_loss=not spec.accepts_kl_coef,
        kl_loss_coef=0.05,
        kl_loss_type="k1" if spec.accepts_kl_coef else "low_var_kl",
        eps_clip_c=3.0,
        gamma=0.9,
        lambd=0.95,
        normalize_advantages=spec.normalize_advantages == "required" or name == "ppo",
        **reduction,
        **({} if spec.ratio_to_behaviour else correction),
    )


def step(rows: Rows, chosen: A.AlgorithmSettings, splits: int = 1) -> tuple[list[np.ndarray], float]:
    """The gradient of one optimizer step by the log-prob of every token, row by row, and the loss.

    The order of events is that of training: rewards in groups, columns of the whole batch, then the sum of the
    losses of `splits` micro-batches.
    """
    spec = A.get(chosen.advantage_estimator)
    offsets = torch.tensor([0, *(len(mask) for mask in rows.masks)]).cumsum(0)
    columns: dict[str, Tensor] = {
        name: torch.from_numpy(np.concatenate(values)) for name, values in rows.tokens.items()
    }
    columns["loss_masks"] = torch.from_numpy(np.concatenate(rows.masks))
    rewards = A.normalize_rewards(spec, rows.rewards, rows.groups, chosen)
    whole = {"rewards": rewards, "raw_reward": rows.rewards, "sample_indices": rows.samples}
    columns |= A.training_columns(spec, chosen, {**columns, **whole}, offsets)
    if spec.batch_stage is not None:
        columns |= A.stage_columns(spec, chosen, columns, offsets, columns["current"])
    leaf = columns["current"].double().requires_grad_()
    loss_fn, total = A.make_policy_loss(chosen), torch.zeros((), dtype=torch.float64)
    for part in np.array_split(np.arange(len(rows.masks)), splits):
        first, last = (int(part[0]), int(part[-1]) + 1) if len(part) else (0, 0)
        tokens = slice(int(offsets[first]), int(offsets[last]))
        inputs = A.LossInputs(
            {name: column[tokens] for name, column in columns.items()}, offsets[first : last + 1] - offsets[first]
        )
        total = total + loss_fn(leaf[tokens], None, inputs)[0]
    total.backward()
    assert leaf.grad is not None
    return np.split(leaf.grad.numpy(), offsets[1:-1].tolist()), float(total.detach())


def assert_same(actual: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", BUILTIN)
@given(rows=batches(), reduction=st.sampled_from(REDUCTIONS), correction=st.sampled_from(CORRECTIONS))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_gradient_of_a_step(name: str, rows: Rows, reduction: dict[str, Any], correction: dict[str, Any]) -> None:
    chosen = flags(name, reduction, correction)
    gradient, loss = step(rows, chosen)

    for splits in (2, 4):  # micro-batches, or data-parallel ranks
        split, split_loss = step(rows, chosen, splits)
        assert_same(split, gradient, 1e-12)
        assert split_loss == pytest.approx(loss, rel=1e-9, abs=1e-12)

    order = list(np.random.default_rng(0).permutation(len(rows.masks)))
    shuffled, _ = step(rows.take(order), chosen)
    assert_same(shuffled, [gradient[i] for i in order], 2e-6)

    padded, padded_loss = step(rows.pad(), chosen)
    assert_same([row[: len(mask)] for row, mask in zip(padded, rows.masks, strict=True)], gradient, 2e-6)
    assert all(not row[len(mask) :].any() for row, mask in zip(padded, rows.masks, strict=True))
    assert padded_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)

    assert math.isfinite(loss)
    for row, mask, reward in zip(gradient, rows.masks, rows.rewards, strict=True):
        assert np.isfinite(row).all()
        assert not row[mask == 0].any()
        if not math.isfinite(reward):
            assert not row.any()


@pytest.mark.parametrize("name", [name for name in BUILTIN if A.get(name).needs_whole_groups])
@given(rows=batches())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_a_group_that_is_all_the_same_teaches_nothing(name: str, rows: Rows) -> None:
    rows.rewards[:] = 0.1
    chosen = A.AlgorithmSettings(
        advantage_estimator=name, normalize_advantages=A.get(name).normalize_advantages == "required"
    )
    gradient, loss = step(rows, chosen)
    assert all(not row.any() for row in gradient)
    assert loss == 0.0


@given(rows=batches())
@settings(max_examples=50, deadline=None, derandomize=True)
def test_whitened_advantages_have_mean_zero_and_variance_one(rows: Rows) -> None:
    spec, chosen = A.get("reinforce_plus_plus"), A.AlgorithmSettings(normalize_advantages=True, gamma=0.9)
    offsets = torch.tensor([0, *(len(mask) for mask in rows.masks)]).cumsum(0)
    masks = torch.from_numpy(np.concatenate(rows.masks))
    columns = {"rewards": rows.rewards, "loss_masks": masks}
    made = A.training_columns(spec, chosen, columns, offsets)
    excluded = torch.from_numpy(~np.isfinite(rows.rewards)).repeat_interleave(offsets.diff())
    kept = made["advantages"][(masks != 0) & ~excluded].double()
    assert not made["advantages"][(masks == 0) | excluded].any()
    if len(kept):
        assert float(kept.mean()) == pytest.approx(0.0, abs=1e-5)
    if len(kept) > 1 and float(made["returns"][(masks != 0) & ~excluded].double().var()) > 1e-3:
        assert float(kept.var()) == pytest.approx(1.0, abs=1e-3)
