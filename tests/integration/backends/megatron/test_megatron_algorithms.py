"""The gradient of a step of every algorithm, however the batch is cut and over whatever ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import clone, make_batch, make_checkpoint, make_settings, run_world, share, single

from relax_engine import algorithms as A
from relax_engine.algorithms.registry import BUILTIN
from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import ParallelLayout
from relax_engine.stream.columns import Column, ColumnBatch

LENGTHS = [23, 9, 31, 14, 6, 27, 12, 40]
RESPONSES = [11, 4, 0, 13, 2, 20, 1, 30]
REWARDS = [1.0, 0.0, 0.5, np.nan, -1.0, 0.25, 2.0, 0.0]
GROUPS = [3, 1, 3, 1, 3, 1, 1, 3]
PROPORTIONAL: dict[str, Any] = {
    "lr": 1.0,
    "weight_decay": 0.0,
    "adam_beta1": 0.0,
    "adam_beta2": 0.0,
    "adam_eps": 1.0,
    "clip_grad": 0.0,
}
"""Adam without memory and with a large epsilon: an update is `g / (|g| + 1)`, which weights then show."""

Weights = dict[str, torch.Tensor]


def settings_of(name: str) -> A.AlgorithmSettings:
    spec = A.get(name)
    return A.AlgorithmSettings(
        advantage_estimator=name,
        eps_clip_c=3.0,
        kl_coef=0.05 if spec.accepts_kl_coef else 0.0,
        use_kl_loss=not spec.accepts_kl_coef,
        kl_loss_coef=0.05,
        kl_loss_type="k1" if spec.accepts_kl_coef else "k3",
        entropy_coef=0.01,
        normalize_advantages=spec.normalize_advantages == "required",
        gamma=0.9,
        lambd=0.9,
    )


def batch_of(name: str, log_probs: np.ndarray) -> ColumnBatch:
    """All columns of a step whose policies are near the model, two groups, masked tokens and a failed reward."""
    rng = np.random.default_rng(1)
    batch = make_batch(LENGTHS, RESPONSES)
    offsets = batch["loss_weights"].offsets
    count = len(log_probs)
    tokens: dict[str, np.ndarray] = {
        column: (log_probs + 0.2 * rng.normal(size=count)).astype(np.float32)
        for column in ("log_probs", "rollout_log_probs", "ref_log_probs")
    }
    tokens["loss_masks"] = (rng.random(count) < 0.8).astype(np.uint8)
    tokens["values"] = rng.normal(size=count).astype(np.float32)
    settings = settings_of(name)
    rewards = A.normalize_rewards(A.get(name), REWARDS, GROUPS, settings)
    rows = {"rewards": rewards, "raw_reward": np.array(REWARDS)}
    made = A.training_columns(A.get(name), settings, {**tokens, **rows}, offsets)
    if A.get(name).batch_stage is not None:
        made |= A.stage_columns(A.get(name), settings, {**tokens, **made}, offsets, log_probs)
    tokens |= {column: tensor.numpy() for column, tensor in made.items()}
    return batch.with_columns(**{column: Column(values, offsets) for column, values in tokens.items()})


def steps(backend: MegatronBackend, log_probs: np.ndarray, cut: dict[str, Any]) -> dict[str, Weights]:
    """Weights after one step of each algorithm from the checkpoint."""
    result = {}
    for name in BUILTIN:
        backend.load_hf(backend.settings.hf_checkpoint)
        loss = A.make_policy_loss(settings_of(name))
        backend.train_step(share(batch_of(name, log_probs), backend), loss, temperature=0.8, **cut)
        result[name] = clone(backend.named_hf_tensors())
    return result


def run(rank: int, size: int, init: str, settings: Any, log_probs: np.ndarray, cut: dict[str, Any]) -> Any:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    result = steps(backend, log_probs, cut)
    backend.close()
    return result


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf"), tied=True)


@pytest.fixture(scope="module")
def log_probs(checkpoint: Path) -> np.ndarray:
    backend = single(make_settings(checkpoint), trainable=False)
    column = backend.forward_log_probs(make_batch(LENGTHS, RESPONSES), temperature=0.8, max_tokens=200)
    backend.close()
    return column.values


@pytest.fixture(scope="module")
def whole(checkpoint: Path, log_probs: np.ndarray) -> dict[str, Weights]:
    """All rows in one micro-batch of one process."""
    settings = make_settings(checkpoint, optimizer=PROPORTIONAL)
    return run(0, 1, "", settings, log_probs, {"max_tokens": 400, "micro_batch_size": 1})


def assert_same(actual: dict[str, Weights], expected: dict[str, Weights]) -> None:
    for name in BUILTIN:
        for tensor in expected[name]:
            torch.testing.assert_close(
                actual[name][tensor],
                expected[name][tensor],
                rtol=0,
                atol=3e-6,
                msg=lambda text, place=f"{name}, {tensor}": f"{place}: {text}",
            )


def test_algorithms_have_gradients_of_their_own(whole: dict[str, Weights], checkpoint: Path) -> None:
    backend = single(make_settings(checkpoint), trainable=False)
    before = clone(backend.named_hf_tensors())
    backend.close()
    embedding = "model.embed_tokens.weight"
    moves = {name: whole[name][embedding] - before[embedding] for name in BUILTIN}
    assert all(float(move.abs().max()) > 1e-3 for move in moves.values())
    for one in BUILTIN:
        for other in BUILTIN:
            assert one == other or not torch.allclose(moves[one], moves[other], rtol=0, atol=3e-6), (one, other)


@pytest.mark.parametrize(
    "cut",
    [
        {"max_tokens": None, "micro_batch_size": 4},
        {"max_tokens": None, "micro_batch_size": 2},
        {"max_tokens": 41, "micro_batch_size": 1},
    ],
    ids=["two", "four", "token budget"],
)
def test_micro_batches(whole: dict[str, Weights], checkpoint: Path, log_probs: np.ndarray, cut: dict[str, Any]) -> None:
    assert_same(run(0, 1, "", make_settings(checkpoint, optimizer=PROPORTIONAL), log_probs, cut), whole)


@pytest.mark.parametrize("layout", [ParallelLayout(), ParallelLayout(tensor=2)], ids=["dp2", "tp2"])
def test_ranks(whole: dict[str, Weights], checkpoint: Path, log_probs: np.ndarray, layout: ParallelLayout) -> None:
    settings = make_settings(checkpoint, layout, optimizer=PROPORTIONAL)
    for answer in run_world(run, 2, settings, log_probs, {"max_tokens": 100, "micro_batch_size": 1}):
        assert_same(answer, whole)
