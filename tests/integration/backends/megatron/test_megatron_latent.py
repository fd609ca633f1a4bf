"""Models with latent attention: recomputation, bfloat16, and the router's bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import LATENT, clone, make_batch, make_checkpoint, make_settings, run_world, single, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import ParallelLayout, RecomputeSettings
from relax_engine.checkpoint.hf_reader import HfReader

BATCH = make_batch([23, 9, 31, 14], [11, 4, 0, 13])
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: dict[str, Any] = {**LATENT, "q_lora_rank": 20, "n_group": 2, "topk_group": 1}
    return make_checkpoint(tmp_path_factory.mktemp("hf"), "DeepseekV3", **options)


def _train(rank: int, size: int, init: str, settings: Any, directory: str) -> list[dict[str, torch.Tensor]]:
    """All tensors before and after a step, and as loaded by another backend from a checkpoint of that."""
    backends = [MegatronBackend(settings, rank=rank, world_size=size, init_method=init) for _ in range(2)]
    backends[0].load_hf(settings.hf_checkpoint)
    found = [clone(backends[0].named_hf_tensors())]
    step(backends[0], BATCH)
    found.append(clone(backends[0].named_hf_tensors()))
    backends[0].save(directory, extra={})
    backends[1].load(directory, optimizer=True)
    found.append(clone(backends[1].named_hf_tensors()))
    for backend in backends:
        backend.close()
    return found


def test_the_routers_bias_is_float32_and_stays_in_a_bfloat16_model_on_two_stages(
    checkpoint: Path, tmp_path: Path
) -> None:
    settings = make_settings(checkpoint, ParallelLayout(pipeline=2), dtype=torch.bfloat16)
    stored = HfReader(checkpoint).tensor(BIAS)
    assert not torch.equal(stored, stored.bfloat16().float())
    for before, after, loaded in run_world(_train, 2, settings, str(tmp_path / "iter")):
        assert all(torch.equal(tensors[BIAS], stored) for tensors in (before, after, loaded))
        gate = "model.layers.1.mlp.gate.weight"
        assert before[gate].dtype == torch.bfloat16
        assert not torch.equal(before[gate], after[gate])
        assert all(torch.equal(tensor, after[name]) for name, tensor in loaded.items())


@pytest.mark.parametrize(
    "recompute", [RecomputeSettings("full", "uniform", 1), RecomputeSettings("selective")], ids=["full", "selective"]
)
def test_recomputation_gives_the_same_step(checkpoint: Path, recompute: RecomputeSettings) -> None:
    metrics = []
    for each in (RecomputeSettings(), recompute):
        backend = single(make_settings(checkpoint, recompute=each))
        metrics.append(step(backend, BATCH))
        backend.close()
    assert metrics[1]["loss"] == pytest.approx(metrics[0]["loss"], rel=1e-6)
    assert metrics[1]["grad_norm"] == pytest.approx(metrics[0]["grad_norm"], rel=1e-5)
