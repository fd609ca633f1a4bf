"""The calculator against parameter lists, published sizes and closed forms."""

from __future__ import annotations

import math

import pytest

from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.mapping import WeightMap
from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.cli.doctor import describe
from relax_engine.config import RunConfig
from relax_engine.config.layout import ParallelLayout, read_layout
from relax_engine.config.model_presets import preset_names, read_preset
from relax_engine.simulation.device_memory import device_memory, language_model
from relax_engine.simulation.memory import (
    TrainingShape,
    activation_bytes,
    key_value_bytes,
    parameters_per_device,
    training_memory,
)

GB = 1e9
TEXT = [name for name in preset_names() if "VL" not in name and "Omni" not in name]


def spec_of(name: str) -> ModelSpec:
    return model_spec(language_model(read_preset(name).hf_config))


@pytest.mark.parametrize("name", TEXT)
def test_presets_have_as_many_parameters_as_is_published(name: str) -> None:
    assert parameters_per_device(spec_of(name), ParallelLayout()).total == read_preset(name).parameters


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Llama-3.2-1B", "Qwen3-30B-A3B", "DeepSeek-V2-Lite", "GLM-4-9B"])
def test_parameters_are_those_of_the_weight_map(name: str) -> None:
    spec = spec_of(name)
    counted = sum(math.prod(mapping.shape) for mapping in WeightMap(spec).parameters.values())
    assert parameters_per_device(spec, ParallelLayout()).total == counted


def test_towers_are_what_is_beside_the_language_model() -> None:
    """Qwen3-VL-4B has the language model of Qwen3-4B; its vision tower has 24 blocks of 12,596,224 parameters."""
    preset = read_preset("Qwen3-VL-4B")
    text = parameters_per_device(spec_of("Qwen3-VL-4B"), ParallelLayout()).total
    assert text == read_preset("Qwen3-4B").parameters
    patches, positions = 3 * 2 * 16 * 16 * 1024 + 1024, 2304 * 1024
    merger = 4096 * 4096 + 4096 + 4096 * 2560 + 2560
    assert preset.parameters - text == 24 * 12_596_224 + patches + positions + 4 * merger + 2 * 1024 + 3 * 2 * 4096


def test_a_model_that_sees_with_the_experts_of_another() -> None:
    """Qwen3-VL-30B-A3B has the language model of Qwen3-30B-A3B; its vision tower has 27 blocks of 15,239,504."""
    preset = read_preset("Qwen3-VL-30B-A3B")
    text = parameters_per_device(spec_of("Qwen3-VL-30B-A3B"), ParallelLayout()).total
    assert text == read_preset("Qwen3-30B-A3B").parameters
    patches, positions = 3 * 2 * 16 * 16 * 1152 + 1152, 2304 * 1152
    merger = 4608 * 4608 + 4608 + 4608 * 2048 + 2048
    assert preset.parameters - text == 27 * 15_239_504 + patches + positions + 4 * merger + 2 * 1152 + 3 * 2 * 4608


@pytest.mark.parametrize("name", preset_names())
def test_every_presets_flags_fit_its_devices(name: str) -> None:
    preset = read_preset(name)
    resource = {"actor": [1, preset.devices], "rollout": [1, preset.devices]}
    config = RunConfig.from_flat(model_preset=name, resource=resource, max_tokens_per_gpu=8192)
    report = device_memory(config)
    assert report is not None
    assert sum(report["actor"].values()) < 72 * GB
    layout = read_layout(config.flat)
    assert layout.data_parallel(preset.devices) >= 1


def test_bytes_of_a_parameter_and_how_they_are_shared() -> None:
    """Mixed precision Adam: 2 + 4 + 12 bytes a parameter (arXiv 1910.02054 counts a float16 gradient: 2 + 2 + 12)."""
    spec = spec_of("Qwen3-4B")
    count = 4_022_468_096
    alone = training_memory(spec, TrainingShape(ParallelLayout(), 1, 2, 1024))
    assert (alone["parameters"], alone["gradients"], alone["optimizer"]) == (2 * count, 4 * count, 12 * count)
    sharded = training_memory(spec, TrainingShape(ParallelLayout(), 8, 2, 1024, distributed_optimizer=True))
    assert sharded["optimizer"] == 12 * count // 8
    exact = training_memory(spec, TrainingShape(ParallelLayout(), 1, 4, 1024))
    assert exact["optimizer"] == 8 * count


def test_experts_are_spread_over_expert_ranks_and_the_rest_over_tensor_ranks() -> None:
    spec = spec_of("Qwen3-30B-A3B")
    share = parameters_per_device(spec, ParallelLayout(4, True, expert=8, expert_tensor=1))
    assert share.expert == 48 * 16 * 3 * 2048 * 768
    attention = (32 + 8) * 128 * 2048 // 4 + 2048 * 4096 // 4 + 2 * 128 + 2 * 2048
    assert share.dense == 48 * (attention + 128 * 2048) + 2 * (151936 // 4) * 2048 + 2048


def test_latent_vectors_are_whole_on_every_tensor_rank() -> None:
    spec = spec_of("DeepSeek-V2-Lite")
    one, two = (parameters_per_device(spec, ParallelLayout(size, size > 1, expert_tensor=1)) for size in (1, 2))
    assert one.expert == two.expert == 26 * 64 * 3 * 2048 * 1408
    by_heads = 27 * 16 * (192 * 2048 + (128 + 128) * 512 + 128 * 2048)
    mlps = 3 * 2048 * (10944 + 26 * 2 * 1408)
    assert 2 * (one.dense - two.dense) == by_heads + mlps + 2 * 102400 * 2048


def test_the_heaviest_pipeline_rank_counts() -> None:
    spec = spec_of("Llama-3.2-1B")
    first = parameters_per_device(spec, ParallelLayout(pipeline=4, first_layers=1, last_layers=1))
    layer = 2 * 2048 + 3072 * 2048 + 2048 * 2048 + 3 * 2048 * 8192
    assert first.total == max(layer + 128256 * 2048 + 2048, 7 * layer)


def test_recomputation_keeps_layer_inputs_and_sequence_parallelism_cuts_them() -> None:
    spec = spec_of("Qwen3-8B")
    shape = TrainingShape(ParallelLayout(), 1, 2, 1000, recompute="full")
    whole, full = activation_bytes(spec, TrainingShape(ParallelLayout(), 1, 2, 1000)), activation_bytes(spec, shape)
    logits = 1000 * 151936 * (2 + 8)
    layer = (whole - logits) // 36
    assert full == 36 * 1000 * 4096 * 2 + layer + logits
    cut = activation_bytes(spec, TrainingShape(ParallelLayout(4, True), 4, 2, 1000))
    assert cut == pytest.approx(whole / 4, rel=1e-6)


def test_cache_of_one_token() -> None:
    assert key_value_bytes(spec_of("Qwen3-8B"), itemsize=2) == 2 * 36 * 8 * 128 * 2
    assert key_value_bytes(spec_of("Qwen3-8B"), itemsize=2, tensor=16) == 2 * 36 * 1 * 128 * 2
    assert key_value_bytes(spec_of("DeepSeek-V3"), itemsize=2, tensor=8) == 61 * (512 + 64) * 2


def test_the_doctor_says_what_each_role_needs() -> None:
    resource = {"actor": [1, 8], "rollout": [1, 8]}
    config = RunConfig.from_flat(
        model_preset="qwen3-8b",
        resource=resource,
        rollout_batch_size=32,
        n_samples_per_prompt=8,
        rollout_max_context_len=4096,
        use_kl_loss=True,
        kl_loss_coef=0.1,
    )
    assert (config.flat.bf16, config.flat.tensor_model_parallel_size) == (True, 2)
    memory = describe(config)["memory"]
    assert memory["rollout"]["key/value cache"] == 32 * 4096 * 2 * 36 * 8 * 128 * 2
    assert memory["actor"]["host: reference"] == memory["actor"]["parameters"]
    own = RunConfig.from_flat(model_preset="Qwen3-8B", tensor_model_parallel_size=4)
    assert own.flat.tensor_model_parallel_size == 4
