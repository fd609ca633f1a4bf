"""Low-rank adapters: the base at the start, PEFT's numbers, the same in every layout, checkpoints, merged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from test_megatron_memory import allocated_bytes
from worlds import EXPERTS, clone, hf_model, make_batch, make_checkpoint, make_settings, run_world, share, single, step

from relax_engine.backends.megatron.backend import MegatronBackend
from relax_engine.backends.megatron.settings import AdapterSettings, ParallelLayout, RecomputeSettings
from relax_engine.checkpoint import export_checkpoint
from relax_engine.checkpoint.adapters import AdapterShape
from relax_engine.checkpoint.hf_reader import HfReader
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.config.sections.lora import LORA_TARGETS
from relax_engine.simulation.memory import AdapterSizes, TrainingShape, training_memory

BATCH = ([23, 9, 31, 14, 6, 27, 12], [11, 4, 0, 13, 2, 20, 1])
STEPS = 3
ADAPTERS = AdapterSettings(AdapterShape(4, 8.0, LORA_TARGETS))
PLAIN = {"weight_decay": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"family": "Qwen2", "tied": True},
    "experts": {"family": "Qwen2Moe", **EXPERTS, "shared_expert_intermediate_size": 40},
    "fused": {
        "family": "Glm4",
        "partial_rotary_factor": 0.5,
        "pad_token_id": 0,
        "eos_token_id": 1,
    },  # gate and up are one layer
}
LAYOUTS = {
    "dense": [
        (2, ParallelLayout(2), True),
        (2, ParallelLayout(2, True), False),
        (4, ParallelLayout(4), False),  # more ranks than key/value heads
        (2, ParallelLayout(pipeline=2), False),
        (2, ParallelLayout(context=2), True),
    ],
    "fused": [(2, ParallelLayout(2, True), False)],
    "experts": [
        (2, ParallelLayout(2, True), False),
        (2, ParallelLayout(expert=2), True),
        (4, ParallelLayout(2, True, pipeline=2), False),
    ],
}


def _settings(checkpoint: Path, layout: ParallelLayout | None = None, **options: Any) -> Any:
    optimizer = {**PLAIN, **options.pop("optimizer", {})}
    return make_settings(checkpoint, layout, **{"adapters": ADAPTERS, "optimizer": optimizer, **options})


def _train(rank: int, size: int, init: str, settings: Any, directory: str) -> dict[str, Any]:
    backend = MegatronBackend(settings, rank=rank, world_size=size, init_method=init)
    backend.load_hf(settings.hf_checkpoint)
    batch = share(make_batch(*BATCH), backend)
    metrics = [step(backend, batch) for _ in range(STEPS)]
    weights = clone(backend.named_hf_tensors())
    backend.save(directory, extra={"rows": 7})
    following = [step(backend, batch) for _ in range(STEPS)]
    backend.close()
    return {"metrics": metrics, "weights": weights, "next": following}


def _resume(settings: Any, directory: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    backend = single(settings)
    assert backend.load(directory, optimizer=True) == {"rows": 7}
    weights = clone(backend.named_hf_tensors())
    following = [step(backend, make_batch(*BATCH)) for _ in range(STEPS)]
    backend.close()
    return weights, following


@pytest.fixture(scope="module", params=["dense", "experts", pytest.param("fused", marks=pytest.mark.long)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp(kind), **MODELS[kind])


@pytest.fixture(scope="module")
def alone(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three steps in one process, and the checkpoint after them."""
    directory = tmp_path_factory.mktemp("saved")
    with CheckpointManager(directory).writing(STEPS) as iteration:
        result = _train(0, 1, "", _settings(checkpoint), str(iteration))
    return {**result, "directory": directory}


def _same(actual: list[dict[str, float]], expected: list[dict[str, float]]) -> bool:
    return all(
        one[name] == pytest.approx(two[name], rel=1e-5, abs=1e-6)
        for one, two in zip(actual, expected, strict=True)
        for name in two
    )


def test_the_first_adapters_change_no_bit_and_only_they_are_trained(checkpoint: Path) -> None:
    batch, stored = make_batch(*BATCH), HfReader(checkpoint)
    base = single(make_settings(checkpoint))
    expected = base.forward_log_probs(batch, temperature=1.0, max_tokens=100)
    base.close()
    backend = single(_settings(checkpoint))
    assert np.array_equal(backend.forward_log_probs(batch, temperature=1.0, max_tokens=100).values, expected.values)
    assert all(torch.equal(tensor, stored.tensor(name)) for name, tensor in backend.named_hf_tensors())
    backend.snapshots.keep("reference")
    step(backend, batch)
    moved = {name for name, tensor in backend.named_hf_tensors() if not torch.equal(tensor, stored.tensor(name))}
    linear = {name for name in stored.names() if "_proj.weight" in name}
    assert moved <= linear
    assert {name.split(".")[-2] for name in moved} == {name.split(".")[-2] for name in linear}
    with backend.snapshots.using("reference"):
        again = backend.forward_log_probs(batch, temperature=1.0, max_tokens=100)
    assert np.array_equal(again.values, expected.values)
    spec, allocated = backend.spec, allocated_bytes(backend)
    backend.close()
    sizes = AdapterSizes(4, LORA_TARGETS)
    computed = training_memory(spec, TrainingShape(ParallelLayout(), 1, 4, 0, adapters=sizes))
    assert allocated == {part: computed[part] for part in allocated}


def test_a_trained_adapter_means_to_peft_what_it_means_here(
    kind: str, checkpoint: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    """PEFT reads the exported directory; its log-probs, gradients and merged weights are the backend's."""
    export_checkpoint(alone["directory"], tmp_path / "peft", origin_hf_dir=checkpoint, adapters_only=True)
    export_checkpoint(alone["directory"], tmp_path / "merged", origin_hf_dir=checkpoint)
    merged = HfReader(tmp_path / "merged")
    assert all(torch.equal(merged.tensor(name), tensor) for name, tensor in alone["weights"].items())
    assert merged.names() == alone["weights"].keys()
    one, two = (tmp_path / name / "adapter_model.safetensors" for name in ("peft", "merged/lora_adapter"))
    assert one.read_bytes() == two.read_bytes()
    batch, backend = make_batch(*BATCH), single(_settings(checkpoint))
    backend.load_adapters(tmp_path / "peft")
    ours = backend.forward_log_probs(batch, temperature=0.8, max_tokens=100)
    metrics = step(backend, batch)
    backend.close()
    plain = single(make_settings(tmp_path / "merged"))
    np.testing.assert_allclose(
        plain.forward_log_probs(batch, temperature=0.8, max_tokens=100).values, ours.values, atol=1e-5
    )
    plain.close()
    if kind == "experts":
        return  # transformers keeps experts in one tensor, which PEFT does not take apart
    model = peft.PeftModel.from_pretrained(hf_model(**MODELS[kind]), tmp_path / "peft", is_trainable=True)
    log_probs, loss = _loss(model, batch)
    np.testing.assert_allclose(ours.values, log_probs.detach().numpy(), atol=1e-5)
    loss.backward()
    grad_norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert (metrics["loss"], metrics["grad_norm"]) == pytest.approx((loss.item(), grad_norm.item()), rel=1e-5)
    unloaded = model.merge_and_unload().state_dict()
    for name, tensor in alone["weights"].items():
        torch.testing.assert_close(unloaded[name], tensor, rtol=0, atol=1e-6)


def _loss(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`AdvantageLoss` at temperature 0.8 by transformers, one sequence at a time."""
    log_probs, entropies = [], []
    for row, count in enumerate(batch["response_lengths"].values.tolist()):
        tokens = torch.tensor(batch["tokens"].row(row), dtype=torch.int64)
        if count:
            logits = model(tokens[None]).logits[0, -count - 1 : -1] / 0.8
            distribution = torch.distributions.Categorical(logits=logits)
            log_probs.append(distribution.log_prob(tokens[-count:]))
            entropies.append(distribution.entropy())
    found, entropy = torch.cat(log_probs), torch.cat(entropies)
    weights, advantages = (torch.from_numpy(batch[name].values) for name in ("loss_weights", "advantages"))
    return found, -(weights * (advantages * found + 0.1 * entropy)).sum()


def test_a_resumed_run_goes_on_exactly(checkpoint: Path, alone: dict[str, Any]) -> None:
    weights, following = _resume(_settings(checkpoint), alone["directory"] / "iter_0000003")
    assert all(torch.equal(weights[name], tensor) for name, tensor in alone["weights"].items())
    assert following == alone["next"]


def test_recomputation_and_deferred_writes_change_nothing(
    checkpoint: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    backend = single(_settings(checkpoint, recompute=RecomputeSettings("full", "uniform", 1)))
    metrics = [step(backend, make_batch(*BATCH)) for _ in range(STEPS)]
    backend.save(tmp_path, extra={"rows": 7}, deferred=True)
    backend.finish_save(30.0)
    backend.close()
    assert _same(metrics, alone["metrics"])
    assert _same(_resume(_settings(checkpoint), tmp_path)[1], alone["next"])


@pytest.mark.long
def test_three_steps_and_the_checkpoint_are_the_same_in_every_layout(
    kind: str, checkpoint: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    for number, (size, layout, distributed) in enumerate(LAYOUTS[kind]):
        _layout_gives(size, layout, distributed, checkpoint, alone, tmp_path / str(number))


def test_tensor_ranks_give_the_same(kind: str, checkpoint: Path, alone: dict[str, Any], tmp_path: Path) -> None:
    if kind == "dense":
        _layout_gives(2, ParallelLayout(2, True), True, checkpoint, alone, tmp_path)


def _layout_gives(
    size: int, layout: ParallelLayout, distributed: bool, checkpoint: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    settings = _settings(checkpoint, layout, optimizer={"use_distributed_optimizer": distributed})
    for answer in run_world(_train, size, settings, str(tmp_path)):
        assert _same(answer["metrics"], alone["metrics"])
        for name, tensor in alone["weights"].items():
            torch.testing.assert_close(answer["weights"][name], tensor, rtol=0, atol=1e-5)
    assert _same(_resume(_settings(checkpoint), tmp_path)[1], alone["next"])


def test_bfloat16_adapters_learn(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "hf", dtype=torch.bfloat16)
    backend = single(_settings(checkpoint, dtype=torch.bfloat16))
    losses = [step(backend, make_batch(*BATCH))["loss"] for _ in range(8)]
    backend.close()
    assert losses[-1] < losses[0] - 0.5


def test_what_does_not_fit_is_refused_by_name(checkpoint: Path, alone: dict[str, Any], tmp_path: Path) -> None:
    directory = alone["directory"] / "iter_0000003"
    for adapters in (None, AdapterSettings(AdapterShape(2, 8.0, LORA_TARGETS))):
        backend = single(_settings(checkpoint, adapters=adapters))
        with pytest.raises(ValueError, match="holds adapters, AdapterShape\\(rank=4"):
            backend.load(directory, optimizer=False)
        backend.save(tmp_path / str(adapters is None), extra={})
        backend.close()
    backend = single(_settings(checkpoint))
    with pytest.raises(ValueError, match="give it as --ref-load"):
        backend.load(tmp_path / "True", optimizer=True)
    backend.load(tmp_path / "True", optimizer=False)
    backend.close()
