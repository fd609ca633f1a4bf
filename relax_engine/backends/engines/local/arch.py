"""The model architecture, read from a Hugging Face `config.json`.

What lives here: the numbers a decoder needs, their checks, and the rotary frequencies.
What does not: tensors (`weights.py`) and the forward pass (`decoder.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_engine.backends.engines.local.errors import ModelError
from relax_engine.checkpoint.families import ExpertSpec, UnsupportedModelError, model_spec

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)


@dataclass(frozen=True)
class Architecture:
    """A decoder with grouped-query attention, RMSNorm, rotary embedding and a SwiGLU block, or experts of such."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    tied: bool
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    context_length: int
    rope: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    experts: ExpertSpec | None = None

    def has_experts(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) is a mixture of experts."""
        return self.experts is not None and layer not in self.experts.dense_layers

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of the key/value cache per token, all layers, keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def flops_per_token(self) -> int:
        """Multiply-adds (x2) of the weight matrices for one decoded token; attention and norms are not counted."""
        qkv = self.hidden_size * self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        out = self.hidden_size * self.head_dim * self.num_heads
        mlps = sum(3 * self.hidden_size * self._width(layer) for layer in range(self.num_layers))
        return 2 * (self.num_layers * (qkv + out) + mlps + self.hidden_size * self.vocab_size)

    def _width(self, layer: int) -> int:
        """MLP columns that a token meets in a layer."""
        if self.experts is None or not self.has_experts(layer):
            return self.intermediate_size
        return self.experts.top_k * self.experts.ffn_hidden_size + (self.experts.shared_ffn_hidden_size or 0)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        ModelError: the file is missing or is not a JSON object.
    """
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist: --model-path must be a Hugging Face model directory") from error
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds a {type(data).__name__}, expected a JSON object")
    return data


def load_architecture(directory: Path) -> Architecture:
    """Read `config.json` (and the end-of-sequence ids of `generation_config.json`) of a model directory.

    Raises:
        ModelError: no config, an unknown architecture, or a feature the engine does not compute.
    """
    config = read_json(directory / "config.json")
    generation = directory / "generation_config.json"
    extra = read_json(generation) if generation.is_file() else {}
    return parse_architecture(config, extra_eos=extra.get("eos_token_id"), source=str(directory / "config.json"))


def parse_architecture(config: Mapping[str, Any], *, extra_eos: Any = None, source: str = "config") -> Architecture:
    """Build an `Architecture` from a Hugging Face configuration.

    Raises:
        ModelError: see `load_architecture`.
    """
    names = config.get("architectures") or []
    name = names[0] if names else None
    if name not in SUPPORTED_ARCHITECTURES:
        raise ModelError(f"{source}: architecture {name!r} is not one of {', '.join(SUPPORTED_ARCHITECTURES)}")

    def field(key: str) -> int:
        value = config.get(key)
        if not isinstance(value, int) or value <= 0:
            raise ModelError(f"{source}: {key} must be a positive integer, got {value!r}")
        return value

    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{source}: hidden_act {config['hidden_act']!r} is not supported, only 'silu'")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise ModelError(f"{source}: sliding-window attention is not supported; set use_sliding_window to false")
    if name == "MistralForCausalLM" and config.get("sliding_window"):
        raise ModelError(f"{source}: sliding-window attention is not supported; sliding_window must be null")
    if config.get("mlp_bias"):
        raise ModelError(f"{source}: mlp_bias is not supported")
    heads, hidden = field("num_attention_heads"), field("hidden_size")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{source}: {heads} heads, {kv_heads} key/value heads, head_dim {head_dim} do not fit together"
        )
    bias = bool(config.get("attention_bias", False))
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    arch = Architecture(
        name=name,
        vocab_size=field("vocab_size"),
        hidden_size=hidden,
        num_layers=field("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=field("intermediate_size"),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=name.startswith("Qwen3"),
        qkv_bias=bias or (name.startswith("Qwen2") and bool(config.get("qkv_bias", True))),
        output_bias=bias and not name.startswith("Qwen2"),
        context_length=field("max_position_embeddings"),
        rope=rope,
        eos_token_ids=tuple(sorted(_ids(config.get("eos_token_id")) | _ids(extra_eos))),
        experts=_experts(config, source) if "Moe" in name else None,
    )
    inverse_frequencies(arch)
    return arch


def _experts(config: Mapping[str, Any], source: str) -> ExpertSpec | None:
    try:
        return model_spec(config).experts
    except UnsupportedModelError as error:
        raise ModelError(f"{source}: {error}") from error


def _ids(value: Any) -> set[int]:
    if value is None:
        return set()
    return set(value) if isinstance(value, list) else {int(value)}


def inverse_frequencies(arch: Architecture) -> Tensor:
    """Rotary inverse frequencies, float32 `[head_dim / 2]`, with the scaling of `rope_type`.

    `linear` divides by `factor`; `llama3` is the smoothed scaling of Llama 3.1 (as in transformers'
    `modeling_rope_utils`).

    Raises:
        ModelError: another `rope_type`.
    """
    rope, dim = arch.rope, arch.head_dim
    inverse = 1.0 / float(rope["rope_theta"]) ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)
    kind = rope["rope_type"]
    if kind == "default":
        return inverse
    if kind == "linear":
        return inverse / float(rope["factor"])
    if kind == "llama3":
        factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        wavelength = 2 * math.pi / inverse
        smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - smooth) * inverse / factor + smooth * inverse
    raise ModelError(f"rope_type {kind!r} is not supported; supported: default, linear, llama3")
