"""One optimizer step whose rows come in parts has the gradient of the whole, on one rank and on several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import AdvantageLoss, clone, make_batch, make_checkpoint, make_settings, run_world, share, single, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import ParallelLayout
from relax_engine.stream.columns import Column, ColumnBatch

LENGTHS = [23, 9, 31, 14, 6, 27, 12, 40]
RESPONSES = [11, 4, 0, 13, 2, 20, 1, 30]
STEPS = 3
SCALE = 1 / sum(RESPONSES)
OPTIMIZER = {"lr": 0.1, "adam_eps": 1.0}
"""With so large an epsilon an update is nearly proportional to the gradient, which weights then show."""


def unscaled(batch: ColumnBatch) -> ColumnBatch:
    """The batch before its size was known: weights of 1."""
    weights = batch["loss_weights"]
    return batch.with_columns(loss_weights=Column(np.ones_like(weights.values), weights.offsets))


def parts_of(batch: ColumnBatch, sizes: list[int]) -> list[ColumnBatch]:
    ends = np.cumsum(sizes)
    return [batch.select(np.arange(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def step_in_parts(backend: MegatronBackend, batch: ColumnBatch, sizes: list[int]) -> dict[str, float]:
    for part in parts_of(unscaled(batch), sizes):
        backend.accumulate(share(part, backend), AdvantageLoss(), temperature=0.8, max_tokens=50, micro_batch_size=1)
    return backend.finish_step(SCALE)


def run_in_parts(rank: int, size: int, init: str, settings: Any, sizes: list[int]) -> dict[str, Any]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    metrics = [step_in_parts(backend, make_batch(LENGTHS, RESPONSES, seed=seed), sizes) for seed in range(STEPS)]
    result = {"metrics": metrics, "weights": clone(backend.named_hf_tensors())}
    backend.close()
    return result


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf"), tied=True)


@pytest.fixture(scope="module")
def whole(checkpoint: Path) -> dict[str, Any]:
    """The same steps, each batch at once and with weights that hold its size."""
    backend = single(make_settings(checkpoint, optimizer=OPTIMIZER))
    metrics = [step(backend, make_batch(LENGTHS, RESPONSES, seed=seed)) for seed in range(STEPS)]
    result = {"metrics": metrics, "weights": clone(backend.named_hf_tensors())}
    backend.close()
    return result


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    for ours, theirs in zip(actual["metrics"], expected["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    for name, tensor in expected["weights"].items():
        torch.testing.assert_close(
            actual["weights"][name], tensor, rtol=0, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("sizes", [[8], [3, 5], [1, 2, 1, 4]])
def test_parts_on_one_rank(checkpoint: Path, whole: dict[str, Any], sizes: list[int]) -> None:
    assert_same(run_in_parts(0, 1, "", make_settings(checkpoint, optimizer=OPTIMIZER), sizes), whole)


@pytest.mark.parametrize(
    ("layout", "distributed"),
    [(ParallelLayout(), False), (ParallelLayout(), True), (ParallelLayout(tensor=2, sequence_parallel=True), False)],
    ids=["DP 2", "DP 2 with the distributed optimizer", "TP 2 with sequence parallelism"],
)
def test_parts_on_two_ranks(checkpoint: Path, whole: dict[str, Any], layout: ParallelLayout, distributed: bool) -> None:
    """A part of one row leaves the second data-parallel rank without any."""
    settings = make_settings(checkpoint, layout, optimizer={**OPTIMIZER, "use_distributed_optimizer": distributed})
    first, second = run_world(run_in_parts, 2, settings, [4, 1, 3])
    assert first["metrics"] == second["metrics"]
    assert_same(first, whole)


def test_a_part_that_fails_leaves_nothing_to_the_next_step(checkpoint: Path, whole: dict[str, Any]) -> None:
    backend = single(make_settings(checkpoint, optimizer=OPTIMIZER))
    batch = make_batch(LENGTHS, RESPONSES, seed=0)

    def broken(*_: Any) -> Any:
        raise ArithmeticError("no loss")

    backend.accumulate(unscaled(batch), AdvantageLoss(), temperature=0.8, max_tokens=50, micro_batch_size=1)
    with pytest.raises(ArithmeticError):
        backend.accumulate(batch, broken, temperature=0.8, max_tokens=50, micro_batch_size=1)
    with pytest.raises(RuntimeError, match="without accumulate"):
        backend.finish_step()
    assert step(backend, batch) == pytest.approx(whole["metrics"][0], rel=1e-5, abs=1e-6)
    backend.close()
