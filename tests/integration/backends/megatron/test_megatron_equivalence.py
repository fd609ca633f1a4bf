"""One process: log-probs, gradients and weights equal transformers', however the batch is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import AdvantageLoss, clone, hf_model, make_batch, make_checkpoint, make_settings, single, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import RecomputeSettings
from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.checkpoint.families import UnknownArchitectureError
from relax_engine.config import RunConfig
from relax_engine.stream.columns import Column, ColumnBatch

LENGTHS = [100, 5, 5, 5, 37, 2]
RESPONSES = [60, 4, 0, 1, 36, 1]
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-tied": {"family": "Qwen3", "tied": True},
    "qwen3": {"family": "Qwen3"},
    "qwen2": {"family": "Qwen2", "tied": True},
    "llama": {"family": "Llama"},
    "llama3-rope": {"family": "Llama", "rope_parameters": LLAMA3_ROPE},
}


Models = tuple[MegatronBackend, Any]


@pytest.fixture(params=list(MODELS), scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    options = MODELS[request.param]
    backend = single(make_settings(make_checkpoint(tmp_path_factory.mktemp("hf"), **options)), trainable=False)
    yield backend, hf_model(**options)
    backend.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf"))


def _reference(model: Any, batch: ColumnBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies `[R]` from transformers, one unpadded sequence at a time."""
    log_probs, entropies = [], []
    for row in range(batch.num_rows):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        count = int(batch["response_lengths"].values[row])
        if count == 0:
            continue
        logits = model(tokens[None]).logits[0, len(tokens) - count - 1 : -1] / temperature
        distribution = torch.distributions.Categorical(logits=logits)
        log_probs.append(distribution.log_prob(tokens[len(tokens) - count :]))
        entropies.append(distribution.entropy())
    return torch.cat(log_probs), torch.cat(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_equal_transformers_packed_and_one_by_one(model: Models, temperature: float) -> None:
    backend, hf = model
    batch = make_batch(LENGTHS, RESPONSES)
    with torch.no_grad():
        expected = _reference(hf, batch, temperature)[0].numpy()
    assert np.abs(expected).max() > 1.0
    for max_tokens in (10_000, 60, 1):
        column = backend.forward_log_probs(batch, temperature=temperature, max_tokens=max_tokens)
        assert column.lengths.tolist() == RESPONSES
        np.testing.assert_allclose(column.values, expected, atol=1e-5)


def test_hf_tensors_round_trip_bitwise(model: Models) -> None:
    backend, hf = model
    exported = dict(backend.named_hf_tensors())
    expected = dict(hf.named_parameters())
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], expected[name]) for name in expected)


def test_bfloat16_round_trips_bitwise_and_scores_near_float32(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, tied=True, dtype=torch.bfloat16)
    backend = single(make_settings(checkpoint, dtype=torch.bfloat16))
    exported = clone(backend.named_hf_tensors())
    batch = make_batch(LENGTHS, RESPONSES)
    log_probs = backend.forward_log_probs(batch, temperature=1.0, max_tokens=1000).values
    before = step(backend, batch)
    after = step(backend, batch)
    # Steps start from the loaded weights, not from a float32 copy made before loading.
    moved = max((tensor - exported[name]).abs().max().item() for name, tensor in backend.named_hf_tensors())
    backend.close()
    assert 0.0 < moved < 0.05
    hf = hf_model("Qwen3", tied=True).to(torch.bfloat16)
    assert all(tensor.dtype == torch.bfloat16 for tensor in exported.values())
    assert all(torch.equal(exported[name], parameter) for name, parameter in hf.named_parameters())
    with torch.no_grad():
        expected = _reference(hf.float(), batch, 1.0)[0].numpy()
    assert np.abs(log_probs - expected).mean() < 0.05
    assert after["loss"] < before["loss"]


def test_gradient_of_one_step_equals_transformers_with_entropy(checkpoint: Path) -> None:
    hf = hf_model("Qwen3")
    batch = make_batch(LENGTHS, RESPONSES)
    log_probs, entropies = _reference(hf, batch, 0.5)
    weights, advantages = (torch.from_numpy(batch[n].values) for n in ("loss_weights", "advantages"))
    loss = -(weights * (advantages * log_probs + 0.1 * entropies)).sum()
    loss.backward()
    grad_norm = torch.stack([p.grad.norm() for p in hf.parameters()]).norm()

    backend = single(make_settings(checkpoint))
    metrics = backend.train_step(batch, AdvantageLoss(), temperature=0.5, max_tokens=60, micro_batch_size=1)
    backend.close()
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(grad_norm.item(), rel=1e-5)


def _weights_after(
    checkpoint: Path, steps: int = 1, **cut: Any
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    settings = make_settings(checkpoint, **cut.pop("settings", {}))
    backend = single(settings)
    batch = make_batch([100, 5, 5, 5], [60, 4, 0, 1])
    metrics = [step(backend, batch, **cut) for _ in range(steps)]
    weights = clone(backend.named_hf_tensors())
    backend.close()
    return metrics, weights


@pytest.mark.parametrize(
    "cut",
    [
        {"size": 2},
        {"size": 1},
        {"max_tokens": 100},
        {"size": 4, "settings": {"recompute": RecomputeSettings("full", "uniform", 1)}},
        {"size": 4, "settings": {"recompute": RecomputeSettings("selective")}},
    ],
    ids=["2-micro-batches", "4-micro-batches", "token-budget", "full-recompute", "selective-recompute"],
)
def test_step_does_not_depend_on_how_the_batch_is_cut(checkpoint: Path, cut: dict[str, Any]) -> None:
    whole, expected = _weights_after(checkpoint, size=4)
    parts, actual = _weights_after(checkpoint, **cut)
    assert parts[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-6)
    assert parts[0]["grad_norm"] == pytest.approx(whole[0]["grad_norm"], rel=1e-5)
    for name in expected:
        # Adam's first step is lr * sign(gradient): compare where the gradient is not rounding noise.
        torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=2e-5)


def test_same_inputs_give_bit_identical_training(checkpoint: Path) -> None:
    first, second = (_weights_after(checkpoint, steps=3, size=2) for _ in range(2))
    assert first[0] == second[0]
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_clipping_scales_the_step_and_reports_the_norm_before(checkpoint: Path) -> None:
    free = _weights_after(checkpoint, size=4, settings={"optimizer": {"clip_grad": 0.0, "adam_eps": 1.0}})
    norm = free[0][0]["grad_norm"]
    half = _weights_after(checkpoint, size=4, settings={"optimizer": {"clip_grad": norm / 2, "adam_eps": 1.0}})
    assert half[0][0]["grad_norm"] == norm
    start = dict(hf_model("Qwen3").named_parameters())
    name = "model.norm.weight"  # not decayed; with eps = 1 Adam's first step is lr * g / (|g| + 1)
    moved = [((weights[name] - start[name]) / -1e-2).double() for _, weights in (free, half)]
    gradients = [step / (1 - step.abs()) for step in moved]
    torch.testing.assert_close(gradients[1], gradients[0] / 2, rtol=2e-3, atol=1e-5)


def test_all_responses_empty_is_a_step_without_gradient(checkpoint: Path) -> None:
    backend = single(make_settings(checkpoint, optimizer={"weight_decay": 0.0}))
    before = clone(backend.named_hf_tensors())
    batch = make_batch([9, 4], [2, 1])
    empty = ColumnBatch(
        {name: Column(column.values[:0], np.zeros(3, np.int64)) for name, column in batch.columns.items()}
        | {"tokens": batch["tokens"], "response_lengths": Column.fixed([0, 0], np.int32)}
    )
    metrics = step(backend, empty)
    assert metrics == {"grad_norm": 0.0, "lr": 1e-2}
    assert all(torch.equal(tensor, before[name]) for name, tensor in backend.named_hf_tensors())
    backend.close()


def test_a_gradient_that_is_not_finite_changes_nothing(checkpoint: Path) -> None:
    backend = single(make_settings(checkpoint))
    before = clone(backend.named_hf_tensors())
    batch = make_batch([9, 4], [2, 1])
    batch["advantages"].values[1] = np.nan
    with pytest.raises(FloatingPointError, match=r"gradient norm is nan.*advantages"):
        step(backend, batch)
    assert all(torch.equal(tensor, before[name]) for name, tensor in backend.named_hf_tensors())
    backend.close()


def test_a_frozen_model_refuses_to_train(checkpoint: Path) -> None:
    backend = single(make_settings(checkpoint), trainable=False)
    with pytest.raises(RuntimeError, match="trainable=True"):
        step(backend, make_batch([5], [2]))
    backend.close()


def test_a_response_without_prompt_is_refused(checkpoint: Path) -> None:
    backend = single(make_settings(checkpoint), trainable=False)
    with pytest.raises(ValueError, match="row 1 of the batch has 4 tokens and a response of 4"):
        backend.forward_log_probs(make_batch([5, 4], [2, 4]), temperature=1.0, max_tokens=100)
    backend.close()


def test_a_backend_is_built_from_the_run_configuration(checkpoint: Path) -> None:
    flags = {"hf_checkpoint": str(checkpoint), "lr": 3e-3, "lr_decay_style": "linear", "num_rollout": 4}
    backend = MegatronBackend(RunConfig.from_flat(**flags), rank=0, world_size=1, init_method="")
    backend.load_hf(checkpoint)
    rates = [step(backend, make_batch([9, 4], [2, 1]))["lr"] for _ in range(3)]
    backend.close()
    assert rates == pytest.approx([3e-3, 3e-3 * 3 / 4, 3e-3 * 2 / 4])


def test_unknown_architecture_fails_before_joining_a_world(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(UnknownArchitectureError, match=r"'MambaForCausalLM'.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        single(make_settings(tmp_path))


def test_weights_of_another_model_are_refused_before_anything_is_loaded(checkpoint: Path, tmp_path: Path) -> None:
    backend = single(make_settings(checkpoint))
    before = clone(backend.named_hf_tensors())
    with pytest.raises(DamagedCheckpointError, match=r"lacks model\.layers\.0\.self_attn\.q_norm\.weight"):
        backend.load_hf(make_checkpoint(tmp_path, "Llama"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in backend.named_hf_tensors())
    backend.close()


def test_two_models_share_a_process_and_another_layout_is_refused(checkpoint: Path) -> None:
    actor, reference = single(make_settings(checkpoint)), single(make_settings(checkpoint), trainable=False)
    batch = make_batch(LENGTHS, RESPONSES)
    before = reference.forward_log_probs(batch, temperature=1.0, max_tokens=500).values
    step(actor, batch)
    assert np.array_equal(reference.forward_log_probs(batch, temperature=1.0, max_tokens=500).values, before)
    assert not np.array_equal(actor.forward_log_probs(batch, temperature=1.0, max_tokens=500).values, before)
    with pytest.raises(RuntimeError, match="cannot be rank 0 of 2"):
        MegatronBackend(make_settings(checkpoint), rank=0, world_size=2, init_method="")
    actor.close()
    reference.close()
