"""The same samples on one rank, on two tensor-parallel and on two data-parallel ranks: the same numbers."""

from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

STEPS = 3


@pytest.fixture(scope="module")
def numbers(ray_cluster: None, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Loss and gradient norm of each step of a supervised run."""

    def run(ranks: int, **flags: Any) -> list[tuple[float, float]]:
        run_dir: Path = tmp_path_factory.mktemp("sft")
        config = tiny.config(
            run_dir, loss_type="sft", global_batch_size=32, num_rollout=STEPS, resource={"actor": [1, ranks]}, **flags
        )
        result = train(config)
        assert (result.steps, result.reward_curve) == (STEPS, [])
        return [(record["train/loss"], record["train/grad_norm"]) for record in read_metrics(run_dir / "metrics.jsonl")]

    return run


@pytest.fixture(scope="module")
def single(numbers: Any) -> list[tuple[float, float]]:
    return numbers(1)


def test_supervised_training_learns(single: list[tuple[float, float]]) -> None:
    losses = [loss for loss, _ in single]
    assert losses[0] > losses[1] > losses[2] > 0


def test_two_tensor_parallel_ranks(single: list[tuple[float, float]], numbers: Any) -> None:
    for ours, expected in zip(numbers(2, tensor_model_parallel_size=2), single, strict=True):
        assert ours == pytest.approx(expected, rel=1e-4)


def test_two_data_parallel_ranks_with_balanced_rows(single: list[tuple[float, float]], numbers: Any) -> None:
    for ours, expected in zip(numbers(2, balance_data=True), single, strict=True):
        assert ours == pytest.approx(expected, rel=1e-4)
