"""Tensor, sequence and data parallelism in real processes give what one process gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import AdvantageLoss, clone, make_batch, make_checkpoint, make_settings, run_world, share, single, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import ParallelLayout

LENGTHS = [23, 9, 31, 14, 6, 27, 12]
RESPONSES = [11, 4, 0, 13, 2, 20, 1]
STEPS = 3

Weights = dict[str, torch.Tensor]


def _train(rank: int, size: int, init: str, settings: Any, save_to: str | None = None) -> dict[str, Any]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    batch = share(make_batch(LENGTHS, RESPONSES), backend)
    log_probs = backend.forward_log_probs(batch, temperature=0.8, max_tokens=50)
    metrics = [step(backend, batch) for _ in range(STEPS)]
    if save_to is not None:
        backend.save(save_to, extra={"rows": 7})
    result = {
        "log_probs": [log_probs.row(i).copy() for i in range(batch.num_rows)],
        "data_parallel": (backend.data_parallel_rank, backend.data_parallel_size),
        "metrics": metrics,
        "weights": clone(backend.named_hf_tensors()),
    }
    if save_to is not None:
        result["next"] = [step(backend, batch) for _ in range(STEPS)]
    backend.close()
    return result


def _resume(rank: int, size: int, init: str, settings: Any, directory: str) -> dict[str, Any]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    extra = backend.load(directory, optimizer=True)
    batch = share(make_batch(LENGTHS, RESPONSES), backend)
    weights = clone(backend.named_hf_tensors())
    result = {"extra": extra, "weights": weights, "next": [step(backend, batch) for _ in range(STEPS)]}
    backend.close()
    return result


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf"), tied=True)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> dict[str, Any]:
    return _train(0, 1, "", make_settings(checkpoint))


def _close(actual: float, expected: float) -> bool:
    return actual == pytest.approx(expected, rel=1e-5, abs=1e-6)


def _assert_same_weights(actual: Weights, expected: Weights, atol: float = 1e-5) -> None:
    assert list(actual) == list(expected)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("size", "layout", "distributed"),
    [
        (2, ParallelLayout(tensor=2), False),
        (2, ParallelLayout(tensor=2, sequence_parallel=True), False),
        (2, ParallelLayout(), False),
        (2, ParallelLayout(), True),
    ],
    ids=["tp2", "tp2-sp", "dp2", "dp2-distributed-optimizer"],
)
def test_three_steps_equal_one_process(
    checkpoint: Path, reference: dict[str, Any], size: int, layout: ParallelLayout, distributed: bool
) -> None:
    settings = make_settings(checkpoint, layout, optimizer={"use_distributed_optimizer": distributed})
    answers = run_world(_train, size, settings)
    for answer in answers:
        rank, replicas = answer["data_parallel"]
        own = reference["log_probs"][rank::replicas]
        np.testing.assert_allclose(np.concatenate(answer["log_probs"]), np.concatenate(own), atol=2e-5)
        for actual, expected in zip(answer["metrics"], reference["metrics"], strict=True):
            assert actual.keys() == expected.keys()
            assert all(_close(actual[name], expected[name]) for name in expected), (actual, expected)
        _assert_same_weights(answer["weights"], reference["weights"])


def test_metrics_are_summed_over_ranks_and_maxima_are_maxima(reference: dict[str, Any]) -> None:
    first = reference["metrics"][0]
    assert first["tokens/sum"] == sum(RESPONSES)
    assert first["log_prob/max"] == pytest.approx(max(np.concatenate(reference["log_probs"])), abs=1e-6)


@pytest.mark.parametrize(
    ("layout", "distributed"),
    [(ParallelLayout(tensor=2), False), (ParallelLayout(tensor=2), True), (ParallelLayout(), True)],
    ids=["tp2", "tp2-distributed-optimizer", "dp2-distributed-optimizer"],
)
def test_a_checkpoint_of_two_ranks_resumes_there_exactly_and_in_one_process(
    checkpoint: Path, tmp_path: Path, layout: ParallelLayout, distributed: bool
) -> None:
    options = {"use_distributed_optimizer": distributed, "lr_decay_style": "linear", "lr_decay_iters": 10}
    two = make_settings(checkpoint, layout, optimizer=options)
    directory = str(tmp_path / "iter_0000003")
    saved = run_world(_train, 2, two, directory)[0]
    for answer in run_world(_resume, 2, two, directory):
        assert answer["extra"] == {"rows": 7}
        assert answer["next"] == saved["next"]
    alone = _resume(0, 1, "", make_settings(checkpoint, optimizer=options), directory)
    _assert_same_weights(alone["weights"], saved["weights"], atol=0.0)
    for actual, expected in zip(alone["next"], saved["next"], strict=True):
        assert all(_close(actual[name], expected[name]) for name in expected), (actual, expected)


def _receive(rank: int, size: int, init: str, settings: Any, tensors: Weights) -> Weights:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init, trainable=False)
    backend.load_hf_tensors(reversed(tensors.items()))
    received = clone(backend.named_hf_tensors())
    backend.close()
    return received


def test_two_tensor_ranks_receive_streamed_tensors(checkpoint: Path, reference: dict[str, Any]) -> None:
    layout = ParallelLayout(tensor=2)
    for received in run_world(_receive, 2, make_settings(checkpoint, layout), reference["weights"]):
        _assert_same_weights(received, reference["weights"], atol=0.0)


def _train_in_bfloat16(rank: int, size: int, init: str, settings: Any) -> tuple[Weights, list[float]]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    received = clone(backend.named_hf_tensors())
    losses = [step(backend, make_batch(LENGTHS, RESPONSES))["loss"] for _ in range(STEPS)]
    backend.close()
    return received, losses


def test_bfloat16_under_tensor_parallelism(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "Qwen2", dtype=torch.bfloat16)
    settings = {size: make_settings(checkpoint, ParallelLayout(size), dtype=torch.bfloat16) for size in (1, 2)}
    expected, losses = _train_in_bfloat16(0, 1, "", settings[1])
    for weights, split_losses in run_world(_train_in_bfloat16, 2, settings[2]):
        _assert_same_weights(weights, expected, atol=0.0)
        assert split_losses == pytest.approx(losses, abs=0.05)


def _starve(rank: int, size: int, init: str, settings: Any) -> list[dict[str, float]]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    batch = make_batch([30, 20, 25], [5, 6, 7])
    mine = batch if rank == 0 else batch.select([])
    metrics = [step(backend, mine, size=1)]
    backend.close()
    return metrics


def test_a_rank_without_rows_keeps_step_with_the_others(checkpoint: Path) -> None:
    settings = make_settings(checkpoint)
    backend = single(settings)
    expected = step(backend, make_batch([30, 20, 25], [5, 6, 7]), size=1)
    backend.close()
    for (actual,) in run_world(_starve, 2, settings):
        assert all(_close(actual[name], expected[name]) for name in expected), (actual, expected)


class CountingLoss(AdvantageLoss):
    """Also reports how often it was called."""

    def __call__(self, *args: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, metrics = super().__call__(*args)
        return loss, metrics | {"calls/sum": torch.ones(())}


def _uneven(rank: int, size: int, init: str, settings: Any) -> dict[str, float]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    batch = make_batch([30, 8, 28, 9], [5, 6, 7, 1]).select([0, 2] if rank == 0 else [1, 3])
    metrics = backend.train_step(batch, CountingLoss(), temperature=0.8, max_tokens=40, micro_batch_size=1)
    backend.close()
    return metrics


def test_all_ranks_make_as_many_micro_batches_as_the_one_that_needs_most(checkpoint: Path) -> None:
    # 30 + 28 tokens do not fit the budget of 40, 8 + 9 do; the second rank divides its rows all the same.
    settings = make_settings(checkpoint)
    backend = single(settings)
    expected = step(backend, make_batch([30, 8, 28, 9], [5, 6, 7, 1]), size=4)
    backend.close()
    for actual in run_world(_uneven, 2, settings):
        assert actual.pop("calls/sum") == 4.0
        assert all(_close(actual[name], expected[name]) for name in expected), (actual, expected)
