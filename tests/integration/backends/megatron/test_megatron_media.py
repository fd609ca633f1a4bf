"""Models that see, in the training backend: beside transformers, packed, spread over ranks, frozen, in checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from media_worlds import FAMILIES, media_batch, media_checkpoint, media_model, transformers_answer
from safetensors.torch import load_file
from worlds import AdvantageLoss, clone, make_settings, run_world, share, single

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.media_rows import with_media
from relax_engine.backends.megatron.packing import pack
from relax_engine.backends.megatron.settings import ParallelLayout, RecomputeSettings
from relax_engine.backends.megatron.sharing import compact
from relax_engine.checkpoint.exporter import export_checkpoint
from relax_engine.checkpoint.importer import import_checkpoint
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.multimodal.media import MediaMismatchError
from relax_engine.stream.columns import Column

PLAIN = {"adam_eps": 1.0, "weight_decay": 0.0, "clip_grad": 0.0, "lr": 1.0}
"""An optimizer whose first step tells the gradient: `g / (|g| + 1)`."""


def _gradients(backend: Any, batch: Any, **options: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss, and each tensor's gradient read off the step it takes."""
    before = clone(backend.named_hf_tensors())
    metrics = backend.train_step(batch, AdvantageLoss(), temperature=0.8, micro_batch_size=1, **options)
    moved = {name: before[name] - tensor for name, tensor in backend.named_hf_tensors()}
    return metrics["loss"], {name: step / (1 - step.abs()) for name, step in moved.items()}


@pytest.mark.parametrize(
    ("family", "max_tokens", "recompute"),
    [
        ("Qwen2_5_VL", 120, False),
        ("Qwen2_5_VL", 1, False),
        ("Qwen3VL", 120, False),
        ("Qwen3VL", 120, True),
        ("Qwen3OmniThinker", 120, False),
    ],
)
def test_log_probs_loss_and_gradients_are_those_of_transformers(
    family: str, max_tokens: int, recompute: bool, tmp_path: Path
) -> None:
    checkpoint = media_checkpoint(tmp_path / "model", family)
    batch = media_batch(family, copies=2)
    log_probs, loss, gradients = transformers_answer(media_model(family), batch, temperature=0.8)
    method = RecomputeSettings("full", "uniform", 1) if recompute else RecomputeSettings()
    backend = single(make_settings(checkpoint, optimizer=PLAIN, recompute=method))
    found = backend.forward_log_probs(batch, temperature=0.8, max_tokens=max_tokens)
    np.testing.assert_allclose(found.values, log_probs, atol=1e-5)
    own_loss, own = _gradients(backend, batch, max_tokens=max_tokens)
    backend.close()
    assert own_loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        scale = float(gradient.abs().max().clamp(min=1e-3))
        assert float((own[name] - gradient).abs().max()) < 1e-4 * scale, name


def test_a_prompt_is_shared_between_equal_images_alone(tmp_path: Path) -> None:
    checkpoint = media_checkpoint(tmp_path / "model", "Qwen3VL")
    batch = media_batch("Qwen3VL", ["tit"], copies=3)
    inputs = batch["multimodal_train_inputs"].values
    other = inputs[2] | {"pixel_values": inputs[2]["pixel_values"] + 1.0}
    copied = inputs[1] | {"pixel_values": inputs[1]["pixel_values"].copy()}
    batch = batch.with_columns(multimodal_train_inputs=Column.objects([inputs[0], copied, other]))
    log_probs, _, _ = transformers_answer(media_model("Qwen3VL"), batch, temperature=1.0)
    backend = single(make_settings(checkpoint))
    family = backend.spec.media
    found = backend.forward_log_probs(batch, temperature=1.0, max_tokens=1000)
    backend.close()
    np.testing.assert_allclose(found.values, log_probs, atol=1e-5)
    assert family is not None
    packing, media = with_media(pack(batch), batch, family)
    prompt = int(batch["tokens"].lengths[0] - batch["response_lengths"].values[0])
    responses = int(batch["response_lengths"].values.sum())
    assert len(compact(packing).tokens) == 2 * prompt + responses - 3, "two prompts, and no last tokens"
    assert media is not None
    assert len(media["image_grid_thw"]) == 2, "and two images encoded"


def test_a_row_whose_prompt_was_cut(tmp_path: Path) -> None:
    backend = single(make_settings(media_checkpoint(tmp_path / "model", "Qwen2_5_VL")))
    batch = media_batch("Qwen2_5_VL", ["ttt", "ti"])
    tokens = [batch["tokens"].row(row) for row in range(2)]
    tokens[1] = tokens[1][int(np.flatnonzero(tokens[1] == 60)[0]) + 1 :]  # without the image's first placeholder
    cut = batch.with_columns(tokens=Column.ragged(tokens, np.int32))
    with pytest.raises(MediaMismatchError, match=r"row 1 of the batch: .*image placeholders from token 0"):
        backend.forward_log_probs(cut, temperature=1.0, max_tokens=1000)
    backend.close()


def test_text_alone_is_the_text_model(tmp_path: Path) -> None:
    checkpoint = media_checkpoint(tmp_path / "model", "Qwen3VL")
    backend = single(make_settings(checkpoint))
    batch = media_batch("Qwen3VL", ["t", "ttt"])
    without = batch.only([name for name in batch if name != "multimodal_train_inputs"])
    both = [backend.forward_log_probs(each, temperature=1.0, max_tokens=100).values for each in (batch, without)]
    log_probs, _, _ = transformers_answer(media_model("Qwen3VL"), batch, temperature=1.0)
    backend.close()
    np.testing.assert_array_equal(*both)
    np.testing.assert_allclose(both[0], log_probs, atol=1e-5)


@pytest.mark.parametrize(
    ("frozen", "kept"),
    [
        ({"vision_model"}, ("model.visual.blocks.", "model.visual.patch_embed.", "model.visual.pos_embed.")),
        ({"vision_projection"}, ("model.visual.merger.", "model.visual.deepstack_merger_list.")),
        ({"language_model"}, ("model.language_model.", "lm_head.")),
    ],
)
def test_frozen_parts_keep_their_weights(frozen: set[str], kept: tuple[str, ...], tmp_path: Path) -> None:
    settings = make_settings(media_checkpoint(tmp_path / "model", "Qwen3VL", layers=3), frozen=frozenset(frozen))
    backend = single(settings)
    before = clone(backend.named_hf_tensors())
    backend.train_step(media_batch("Qwen3VL"), AdvantageLoss(), temperature=0.8, max_tokens=1, micro_batch_size=1)
    after = clone(backend.named_hf_tensors())
    backend.close()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith(kept)}


def test_nothing_left_to_train(tmp_path: Path) -> None:
    everything = frozenset({"vision_model", "vision_projection", "language_model"})
    settings = make_settings(media_checkpoint(tmp_path / "model", "Qwen3VL"), frozen=everything)
    with pytest.raises(ValueError, match="without anything to train"):
        single(settings, load=False)


def _spread(rank: int, size: int, init: str, settings: Any, checkpoint: Path, directory: Path) -> dict[str, Any]:
    """Log-probs, loss and gradients of this rank; then its training state is saved."""
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(checkpoint)
    batch = share(media_batch("Qwen3VL"), backend)
    found = backend.forward_log_probs(batch, temperature=0.8, max_tokens=100)
    loss, gradients = _gradients(backend, batch, max_tokens=100)
    backend.save(directory, extra={})
    tensors = clone(backend.named_hf_tensors())
    replica = backend.data_parallel_rank, backend.data_parallel_size
    backend.close()
    rows = [found.row(row).copy() for row in range(batch.num_rows)]
    return {"rows": rows, "loss": loss, "gradients": gradients, "tensors": tensors, "replica": replica}


@pytest.mark.long
def test_spread_over_ranks_and_loaded_on_one(tmp_path: Path) -> None:
    options = {"layers": 4, "deepstack": 2}
    checkpoint = media_checkpoint(tmp_path / "model", "Qwen3VL", **options)
    batch = media_batch("Qwen3VL")
    log_probs, loss, gradients = transformers_answer(media_model("Qwen3VL", **options), batch, temperature=0.8)
    layout = ParallelLayout(2, True, pipeline=2)
    settings = make_settings(checkpoint, layout, optimizer=PLAIN | {"use_distributed_optimizer": True})
    answers = run_world(_spread, 4, settings, checkpoint, tmp_path / "state")
    for answer in answers:
        np.testing.assert_allclose(np.concatenate(answer["rows"]), log_probs, atol=1e-5)
        assert answer["loss"] == pytest.approx(loss, rel=1e-5)
        for name, gradient in gradients.items():
            scale = float(gradient.abs().max().clamp(min=1e-3))
            assert float((answer["gradients"][name] - gradient).abs().max()) < 1e-4 * scale, name
    alone = single(dataclasses.replace(settings, layout=ParallelLayout()), load=False)
    alone.load(tmp_path / "state", optimizer=True)
    loaded = clone(alone.named_hf_tensors())
    alone.close()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in answers[0]["tensors"].items())


@pytest.mark.parametrize("family", FAMILIES)
def test_stored_and_exported_bitwise(family: str, tmp_path: Path) -> None:
    checkpoint = media_checkpoint(tmp_path / "model", family)
    imported = import_checkpoint(checkpoint, tmp_path / "imported")
    backend = single(make_settings(checkpoint), load=False)
    backend.load(imported.path, optimizer=False)
    with CheckpointManager(tmp_path / "run").writing(1, optimizer=True) as directory:
        backend.save(directory, extra={})
    backend.close()
    original = load_file(checkpoint / "model.safetensors")
    for number, place in enumerate((imported.path, tmp_path / "run")):
        out = tmp_path / f"exported{number}"
        export_checkpoint(place, out, origin_hf_dir=checkpoint)
        exported = load_file(next(out.glob("*.safetensors")))
        assert exported.keys() == original.keys()
        assert all(torch.equal(exported[name], tensor) for name, tensor in original.items())
