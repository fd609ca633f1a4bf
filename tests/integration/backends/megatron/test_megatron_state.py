"""Checkpoints: exact continuation, what they contain, and how bad ones fail."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from worlds import clone, make_batch, make_checkpoint, make_settings, single, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.deferred_writes import DeferredWrites

BATCH = make_batch([20, 9, 31, 14], [11, 4, 0, 13])
SCHEDULE = {"lr_decay_style": "cosine", "lr_decay_iters": 8, "lr_warmup_iters": 2}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf"), tied=True)


def _draws() -> tuple[float, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        torch.rand(1).item(),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_resume_continues_exactly(checkpoint: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    backend = single(make_settings(checkpoint, dtype=dtype, optimizer=SCHEDULE))
    for _ in range(3):
        step(backend, BATCH)
    random.gauss(0, 1)  # leaves a cached value behind, as does randn
    np.random.randn()
    backend.save(tmp_path / "iter_0000003", extra={"position": [3, 4], "name": "run", "t": torch.arange(3)})
    expected_draws = _draws()
    expected = [step(backend, BATCH) for _ in range(3)]
    backend.close()

    resumed = single(make_settings(checkpoint, dtype=dtype, optimizer=SCHEDULE, seed=99), load=False)
    extra = resumed.load(tmp_path / "iter_0000003", optimizer=True)
    assert resumed.iteration == 3
    assert (extra["position"], extra["name"], extra["t"].tolist()) == ([3, 4], "run", [0, 1, 2])
    assert _draws() == expected_draws
    assert [step(resumed, BATCH) for _ in range(3)] == expected
    resumed.close()


@pytest.mark.parametrize("distributed", [False, True], ids=["plain", "distributed-optimizer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_model_that_has_taken_no_step_resumes(
    checkpoint: Path, tmp_path: Path, dtype: torch.dtype, distributed: bool
) -> None:
    """As an actor does whose critic was trained alone so far."""
    options = {"use_distributed_optimizer": distributed}
    backend = single(make_settings(checkpoint, dtype=dtype, optimizer=options))
    backend.save(tmp_path / "iter", extra={})
    expected = [step(backend, BATCH) for _ in range(2)]
    backend.close()
    resumed = single(make_settings(checkpoint, dtype=dtype, optimizer=options, seed=99), load=False)
    resumed.load(tmp_path / "iter", optimizer=True)
    assert (resumed.iteration, [step(resumed, BATCH) for _ in range(2)]) == (0, expected)
    resumed.close()


def test_a_deferred_save_is_of_the_moment_it_was_asked_for(checkpoint: Path, tmp_path: Path) -> None:
    backend = single(make_settings(checkpoint, dtype=torch.bfloat16, optimizer=SCHEDULE))
    step(backend, BATCH)
    backend.save(tmp_path / "direct", extra={"step": 1})
    backend.save(tmp_path / "deferred", extra={"step": 1}, deferred=True)
    step(backend, BATCH)  # changes every tensor in place
    backend.finish_save(30)
    backend.close()
    for path in (tmp_path / "direct").iterdir():
        assert (tmp_path / "deferred" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_deferred_save_that_cannot_be_written_says_so_at_its_end(checkpoint: Path, tmp_path: Path) -> None:
    backend = single(make_settings(checkpoint))
    writes = DeferredWrites()
    with writes.files.create_stream(tmp_path / "gone/__0_0.distcp", "wb") as stream:
        stream.write(b"x")
    writes.start()
    with pytest.raises(FileNotFoundError, match="gone"):
        writes.finish(10)
    backend.finish_save(1)  # nothing was deferred
    backend.close()


@pytest.mark.parametrize("distributed", [False, True], ids=["from-plain", "from-distributed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_other_kind_of_optimizer_goes_on(
    checkpoint: Path, tmp_path: Path, dtype: torch.dtype, distributed: bool
) -> None:
    """Main parameters have another name there, or are the model's own."""
    backend = single(make_settings(checkpoint, dtype=dtype, optimizer={"use_distributed_optimizer": distributed}))
    for _ in range(2):
        step(backend, BATCH)
    backend.save(tmp_path / "iter", extra={})
    expected = [step(backend, BATCH)["loss"] for _ in range(3)]
    backend.close()
    settings = make_settings(checkpoint, dtype=dtype, optimizer={"use_distributed_optimizer": not distributed}, seed=5)
    resumed = single(settings, load=False)
    resumed.load(tmp_path / "iter", optimizer=True)
    assert [step(resumed, BATCH)["loss"] for _ in range(3)] == pytest.approx(expected, rel=1e-6)
    resumed.close()


def test_a_float32_optimizer_does_not_go_on_in_bfloat16(checkpoint: Path, tmp_path: Path) -> None:
    backend = single(make_settings(checkpoint))
    backend.save(tmp_path / "iter", extra={})
    backend.close()
    other = single(make_settings(checkpoint, dtype=torch.bfloat16), load=False)
    with pytest.raises(ValueError, match="float32 run, and this one is bfloat16"):
        other.load(tmp_path / "iter", optimizer=True)
    other.close()


def test_weights_alone_restore_the_model_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    backend = single(make_settings(checkpoint))
    step(backend, BATCH)
    backend.save(tmp_path / "iter", extra={})
    weights = clone(backend.named_hf_tensors())
    backend.close()
    frozen = single(make_settings(checkpoint, seed=5), load=False, trainable=False)
    assert frozen.load(tmp_path / "iter", optimizer=False) == {}
    assert frozen.iteration == 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in frozen.named_hf_tensors())
    frozen.close()


def test_a_snapshot_is_saved_without_optimizer_and_read_by_a_model_that_does_not_train(
    checkpoint: Path, tmp_path: Path
) -> None:
    backend = single(make_settings(checkpoint))
    step(backend, BATCH)
    kept = clone(backend.named_hf_tensors())
    backend.snapshots.keep("reference")
    step(backend, BATCH)
    with backend.snapshots.using("reference"):
        backend.save(tmp_path / "reference", extra={}, optimizer=False)
    present = clone(backend.named_hf_tensors())
    assert not all(torch.equal(present[name], tensor) for name, tensor in kept.items())
    backend.snapshots.discard("reference")
    with pytest.raises(KeyError), backend.snapshots.using("reference"):
        pass
    backend.close()

    reader = single(make_settings(checkpoint), load=False, trainable=False)
    reader.load(tmp_path / "reference", optimizer=False)
    loaded = dict(reader.named_hf_tensors())
    assert all(torch.equal(loaded[name], tensor) for name, tensor in kept.items())
    reader.close()


def test_files_are_torch_dcp_with_megatron_keys_and_safe_to_unpickle(checkpoint: Path, tmp_path: Path) -> None:
    backend = single(make_settings(checkpoint))
    step(backend, BATCH)
    backend.save(tmp_path / "iter", extra={"step": 1})
    backend.close()
    stored = FileSystemReader(tmp_path / "iter").read_metadata().state_dict_metadata
    assert tuple(stored["decoder.layers.self_attention.linear_qkv.weight"].size) == (2, 96, 32)
    assert tuple(stored["decoder.layers.mlp.linear_fc1.weight"].size) == (2, 96, 32)
    assert tuple(stored["embedding.word_embeddings.weight"].size) == (61, 32)
    assert "optimizer.state.exp_avg.decoder.final_layernorm.weight" in stored
    common = torch.load(tmp_path / "iter" / "common.pt", weights_only=True)
    assert (common["iteration"], common["extra"]) == (1, {"step": 1})
    [rng] = [name for name in stored if name.startswith("rng_state")]
    assert rng == "rng_state/shard_0.0.0_1.1.1"


def test_extra_that_cannot_be_read_back_safely_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    backend = single(make_settings(checkpoint), trainable=False)
    with pytest.raises(TypeError, match=r"extra\['data'\]\[1\] is a float64"):
        backend.save(tmp_path / "iter", extra={"data": [1, np.float64(2.0)]})
    assert not (tmp_path / "iter").exists()
    backend.close()


def test_loading_what_is_not_there_says_so(checkpoint: Path, tmp_path: Path) -> None:
    frozen = single(make_settings(checkpoint), trainable=False)
    frozen.save(tmp_path / "weights", extra={})
    frozen.close()
    backend: MegatronBackend = single(make_settings(checkpoint))
    with pytest.raises(FileNotFoundError, match="not a complete distributed checkpoint"):
        backend.load(tmp_path, optimizer=False)
    with pytest.raises(ValueError, match="no optimizer state"):
        backend.load(tmp_path / "weights", optimizer=True)
    backend.close()


def test_learning_rate_follows_the_schedule(checkpoint: Path) -> None:
    backend = single(make_settings(checkpoint, optimizer=SCHEDULE))
    rates = [step(backend, BATCH)["lr"] for _ in range(10)]
    backend.close()
    warm = [0.0, 0.005]
    cosine = [0.01 * (1 + np.cos(np.pi * (s - 2) / 6)) / 2 for s in range(2, 9)]
    assert rates == pytest.approx([*warm, *cosine, 0.0], abs=1e-12)
