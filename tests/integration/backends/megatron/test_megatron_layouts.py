"""Pipeline, context and expert parallelism in real processes give what one process gives.

A few combinations; `test_parity_matrix.py` has all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import EXPERTS, clone, make_batch, make_checkpoint, make_settings, run_world, share, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import BackendSettings, RecomputeSettings
from relax_engine.config.layout import ParallelLayout

LENGTHS = [23, 9, 31, 14, 6, 27, 12, 40]
RESPONSES = [11, 4, 0, 13, 2, 20, 1, 30]
# With so large an epsilon an update is nearly proportional to the gradient, which weights then show.
OPTIMIZER = {"adam_eps": 1.0, "use_distributed_optimizer": True, "lr_decay_style": "linear", "lr_decay_iters": 10}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"family": "Qwen3", "tied": True, "num_hidden_layers": 4},
    "experts": {"family": "Qwen2Moe", **EXPERTS, "num_hidden_layers": 2, "shared_expert_intermediate_size": 40},
}


def _train(rank: int, size: int, init: str, settings: BackendSettings, directory: str) -> dict[str, Any]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    batch = share(make_batch(LENGTHS, RESPONSES), backend)
    log_probs = backend.forward_log_probs(batch, temperature=0.8, max_tokens=50)
    metrics = [step(backend, batch) for _ in range(2)]
    weights = clone(backend.named_hf_tensors())
    backend.save(directory, extra={})
    following = step(backend, batch)
    backend.load(directory, optimizer=True)
    again = step(backend, batch)
    result = {
        "log_probs": [log_probs.row(i).copy() for i in range(batch.num_rows)],
        "replica": (backend.data_parallel_rank, backend.data_parallel_size),
        "speaks": backend.speaks_for_slice,
        "metrics": [*metrics, following],
        "again": again,
        "weights": weights,
    }
    backend.close()
    return result


@pytest.mark.parametrize(
    ("model", "size", "layout", "recompute"),
    [
        ("dense", 2, ParallelLayout(pipeline=2, virtual=2), RecomputeSettings("full", "uniform", 1)),
        ("dense", 4, ParallelLayout(2, True, context=2), RecomputeSettings()),
        ("experts", 4, ParallelLayout(pipeline=2, context=2, expert=2), RecomputeSettings()),
    ],
    ids=["interleaved-recomputed", "tensor-context", "pipeline-context-experts"],
)
def test_steps_weights_and_checkpoints_equal_those_of_one_process(
    tmp_path: Path, model: str, size: int, layout: ParallelLayout, recompute: RecomputeSettings
) -> None:
    checkpoint = make_checkpoint(tmp_path / "hf", **MODELS[model])
    alone = _train(0, 1, "", make_settings(checkpoint, optimizer=OPTIMIZER), str(tmp_path / "one"))
    settings = make_settings(checkpoint, layout, optimizer=OPTIMIZER, recompute=recompute)
    answers = run_world(_train, size, settings, str(tmp_path / "many"))
    assert sum(answer["speaks"] for answer in answers) == answers[0]["replica"][1]
    for answer in answers:
        rank, replicas = answer["replica"]
        own = alone["log_probs"][rank::replicas]
        np.testing.assert_allclose(np.concatenate(answer["log_probs"]), np.concatenate(own), atol=5e-6)
        for actual, expected in zip(answer["metrics"], alone["metrics"], strict=True):
            assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert answer["again"] == answer["metrics"][-1]
        assert list(answer["weights"]) == list(alone["weights"])
        for name, tensor in alone["weights"].items():
            torch.testing.assert_close(answer["weights"][name], tensor, rtol=0, atol=1e-6, msg=name)


def test_a_layout_that_the_model_does_not_divide_over_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "Qwen3")
    answers = run_world(_refused, 3, make_settings(checkpoint, ParallelLayout(pipeline=3)))
    assert all("2 layers do not divide over 3 pipeline ranks" in answer for answer in answers)


def test_experts_cut_twice_are_refused_where_ranks_cannot_exchange_unequal_tensors(tmp_path: Path) -> None:
    """Whether or not the process is in a world already."""
    checkpoint = make_checkpoint(tmp_path, **MODELS["experts"])
    MegatronBackend(make_settings(checkpoint, ParallelLayout()), rank=0, world_size=1, init_method="").close()
    settings = make_settings(checkpoint, ParallelLayout(2, True, expert=2))
    with pytest.raises(ValueError, match=r"2 expert-parallel and 2 expert-tensor-parallel ranks .* gloo does not"):
        MegatronBackend(settings, rank=0, world_size=4, init_method="")


def _refused(rank: int, size: int, init: str, settings: BackendSettings) -> str:
    with pytest.raises(ValueError, match="cannot be spread over") as caught:
        MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    return str(caught.value)
