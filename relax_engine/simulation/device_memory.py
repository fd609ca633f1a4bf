"""What each role of a configured run needs on a device, for `relax doctor`.

What lives here: reading sizes from a configuration, its model directory or preset. What does not: the formulas
(`memory.py`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.checkpoint.families import UnknownArchitectureError, model_spec
from relax_engine.checkpoint.model_spec import ModelSpec
from relax_engine.config import RunConfig
from relax_engine.config.layout import read_layout
from relax_engine.config.model_presets import read_preset
from relax_engine.config.roles import devices_of, required_roles, uses_reference
from relax_engine.multimodal.families import media_family
from relax_engine.simulation.memory import (
    AdapterSizes,
    ParallelLayout,
    TrainingShape,
    key_value_bytes,
    parameters_per_device,
    training_memory,
)

_TEXT_MODELS = {
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
}
"""The language model inside a model of several modalities."""

Report = dict[str, dict[str, int]]


def device_memory(config: RunConfig) -> Report | None:
    """Bytes by role and part; None where the model's sizes are not known.

    `actor` (with `critic`, each forward-only role) has the training backend's parts, the reference's weights where it
    holds them in host memory as `host/reference`, and two transfer buckets. `rollout` has an engine's weights, and its
    key/value cache for all samples of a rollout at their longest, divided over the engines.
    """
    found = _model(config)
    if found is None:
        return None
    spec, towers = found
    flat = config.flat
    itemsize = 2 if flat.bf16 else 4
    try:
        layout = read_layout(flat)
    except ValueError:
        return None  # the doctor says why
    world = max(devices_of(config, "actor"), layout.model_parallel)
    tokens = flat.max_tokens_per_gpu or flat.micro_batch_size * (
        flat.rollout_max_context_len or spec.max_position_embeddings
    )
    try:
        layout.data_parallel(world)
    except ValueError:
        return None
    shape = TrainingShape(
        layout, world, itemsize, tokens, flat.use_distributed_optimizer, flat.recompute_granularity, towers
    )
    sizes = AdapterSizes(flat.lora_rank, tuple(flat.lora_target_modules)) if flat.lora_rank else None
    buckets = {"transfer buckets": 2 * flat.update_weight_buffer_size}
    actor = training_memory(spec, dataclasses.replace(shape, adapters=sizes))
    whole = training_memory(spec, shape)
    report: Report = {"actor": actor | buckets}
    weights = whole["parameters"]
    if uses_reference(config) and config.mode != "fully_async":
        report["actor"]["host: reference"] = weights if sizes is None else actor["parameters"] - weights
    for role in required_roles(config):
        if role == "critic":
            report[role] = whole | buckets
        elif role in ("reference", "actor_fwd"):
            report[role] = {"parameters": weights}
        elif role == "rollout":
            report[role] = _engine(config, spec, itemsize, towers)
    return report


def _engine(config: RunConfig, spec: ModelSpec, itemsize: int, towers: int) -> dict[str, int]:
    flat = config.flat
    engines = max(1, devices_of(config, "rollout"))  # each has a device of its own
    samples = -(-flat.rollout_batch_size * flat.n_samples_per_prompt // engines)
    longest = flat.rollout_max_context_len or spec.max_position_embeddings
    share = parameters_per_device(spec, ParallelLayout())
    return {
        "parameters": (share.total + towers) * itemsize,
        "key/value cache": samples * longest * key_value_bytes(spec, itemsize=itemsize),
    }


def _model(config: RunConfig) -> tuple[ModelSpec, int] | None:
    """The language model, and the number of parameters beside it."""
    name, directory = config.model.model_preset, config.model.hf_checkpoint
    parameters: int | None = None
    hf_config: Mapping[str, Any]
    path = Path(directory, "config.json") if directory else None
    try:
        if path is not None and path.is_file():
            hf_config = json.loads(path.read_text(encoding="utf-8"))
        elif name is not None:
            preset = read_preset(name)
            hf_config, parameters = preset.hf_config, preset.parameters
        else:
            return None
        spec = model_spec(language_model(hf_config))
    except (UnknownArchitectureError, UnsupportedModelError, json.JSONDecodeError):
        return None  # the doctor says why
    own = parameters_per_device(spec, ParallelLayout()).total
    family = media_family(hf_config)
    if parameters is None and family is not None:
        from relax_engine.multimodal.towers import tower_shapes  # torch

        return spec, sum(math.prod(shape) for shape in tower_shapes(family).values())
    return spec, max(0, (parameters or own) - own)


def language_model(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `config.json` of the language model inside one of several modalities; others as they are."""
    [architecture, *_] = hf_config.get("architectures") or [None]
    if architecture not in _TEXT_MODELS:
        return hf_config
    inner = hf_config.get("thinker_config", hf_config)["text_config"]
    plain = {key: value for key, value in inner.items() if key != "rope_scaling"}  # positions do not take memory
    return {**plain, "architectures": [_TEXT_MODELS[architecture]]}
