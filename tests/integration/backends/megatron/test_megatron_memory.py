"""What the memory calculator says, against what the backend allocates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import VOCAB, AdvantageLoss, make_batch, make_checkpoint, make_settings, run_world, single, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.config.layout import ParallelLayout
from relax_engine.simulation.memory import TrainingShape, activation_bytes, training_memory

BATCH = make_batch([200, 190, 210, 205], [199, 189, 209, 204])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf"), tied=False)


def allocated_bytes(backend: MegatronBackend) -> dict[str, int]:
    """Bytes of parameters, gradient buffers and optimizer state."""
    training = backend._training
    assert training is not None
    own = list(backend._model.parameters())
    inner = [chained.optimizer for chained in training.optimizer.chained_optimizers]
    held = {p for each in inner for group in each.param_groups for p in group["params"]}
    copies = sum(
        p.nbytes for p in held if not any(p.data_ptr() == q.data_ptr() for q in own) and p.dtype != own[0].dtype
    )
    moments = sum(s[m].nbytes for each in inner for s in each.state.values() for m in ("exp_avg", "exp_avg_sq"))
    return {
        "parameters": sum(p.nbytes for p in own),
        "gradients": sum(buffer.grad_data.nbytes for ddp in training.ddp for buffer in ddp.buffers),
        "optimizer": copies + moments,
    }


def _measure(rank: int, size: int, init: str, settings: Any) -> dict[str, int]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    step(backend, BATCH)
    allocated = allocated_bytes(backend)
    backend.close()
    return allocated


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_parameters_gradients_and_optimizer_are_exact(checkpoint: Path, dtype: torch.dtype) -> None:
    settings = make_settings(checkpoint, dtype=dtype)
    backend = single(settings)
    spec = backend.spec
    step(backend, BATCH)
    allocated = allocated_bytes(backend)
    backend.close()
    expected = training_memory(spec, TrainingShape(ParallelLayout(), 1, dtype.itemsize, 0))
    assert allocated == {part: expected[part] for part in allocated}


def test_parts_are_divided_over_tensor_parallel_ranks(checkpoint: Path) -> None:
    layout = ParallelLayout(2, True)
    settings = make_settings(checkpoint, layout)
    backend = single(make_settings(checkpoint))
    spec = backend.spec
    backend.close()
    expected = training_memory(spec, TrainingShape(layout, 2, 4, 0))
    for allocated in run_world(_measure, 2, settings):
        assert allocated == {part: expected[part] for part in allocated}


def test_activations_are_estimated(tmp_path: Path) -> None:
    """Against the bytes that autograd keeps of a forward pass, each storage once."""
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6}
    backend = single(make_settings(make_checkpoint(tmp_path, tied=False, **sizes)))
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in backend._model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backend.accumulate(BATCH, AdvantageLoss(), temperature=1.0, max_tokens=None, micro_batch_size=4)
    backend.close()
    tokens = int(BATCH["tokens"].lengths.sum())
    estimate = activation_bytes(backend.spec, TrainingShape(ParallelLayout(), 1, 4, tokens))
    assert sum(kept.values()) == pytest.approx(estimate, rel=0.25), VOCAB
