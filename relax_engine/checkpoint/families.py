"""Model families: what a Hugging Face `config.json` says about the architecture.

What lives here: `ModelSpec`, the architecture facts that the training backend and the weight
mapping need, and one reader per family. What does not: parameter names and layouts
(`relax_engine.checkpoint.mapping`), Megatron classes (`relax_engine.backends.megatron`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

HfConfig = Mapping[str, Any]


class UnknownArchitectureError(ValueError):
    """The checkpoint's architecture has no family here."""


class UnsupportedModelError(ValueError):
    """The family is known, but this configuration of it is not supported."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding.

    `theta` is the base period. `scaling_factor` None means plain RoPE; otherwise frequencies are
    rescaled as Llama 3.1 does (`rope_type: llama3`), with the remaining fields in that formula.
    """

    theta: float
    scaling_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The mixture of experts that stands in the place of a layer's MLP.

    Each token goes to `top_k` of `count` experts of width `ffn_hidden_size`, by the softmax of the router's logits.
    `normalise` rescales the chosen probabilities to sum to 1. Shared experts see every token: one MLP of width
    `shared_ffn_hidden_size` (None: there is none), times a sigmoid gate of the token where `shared_gate`.
    `dense_layers` are layers that have a plain MLP instead.
    """

    count: int
    top_k: int
    ffn_hidden_size: int
    normalise: bool
    shared_ffn_hidden_size: int | None = None
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer: RMSNorm, rotary attention with grouped KV heads, SwiGLU, or experts of SwiGLU.

    Sizes are element counts. `dtype` is the checkpoint's name for it (`float32`, `bfloat16`, ...).
    `num_labels` is the width of a score layer that stands in the place of the vocabulary projection; None
    for a language model.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool
    qk_norm: bool = False
    qkv_bias: bool = False
    dtype: str = "float32"
    num_labels: int | None = None
    experts: ExpertSpec | None = None

    def has_experts(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) is a mixture of experts."""
        return self.experts is not None and layer not in self.experts.dense_layers


def model_spec(hf_config: HfConfig) -> ModelSpec:
    """The architecture described by a `config.json`.

    Raises:
        UnknownArchitectureError: no family of that name; the message lists the supported ones.
        UnsupportedModelError: a feature of the configuration is not supported, or a key is missing.
    """
    architectures = hf_config.get("architectures") or []
    name = architectures[0] if architectures else None
    if name not in FAMILIES:
        shown = "none (config.json has no 'architectures')" if name is None else repr(name)
        raise UnknownArchitectureError(f"unknown model architecture {shown}; supported: {', '.join(sorted(FAMILIES))}")
    try:
        return FAMILIES[name](name, hf_config)
    except KeyError as error:
        raise UnsupportedModelError(f"config.json of {name} lacks the key {error}") from error


def policy_spec(spec: ModelSpec) -> ModelSpec:
    """`spec` as that of a policy, which is a language model.

    Raises:
        UnsupportedModelError: it ends in a score layer.
    """
    if spec.num_labels is not None:
        raise UnsupportedModelError(f"{spec.architecture} gives scores, not tokens; a policy is a ...ForCausalLM model")
    return spec


def classifier_spec(spec: ModelSpec) -> ModelSpec:
    """`spec` as that of a classifier, which gives one score per label.

    Raises:
        UnsupportedModelError: it ends in a vocabulary projection.
    """
    if spec.num_labels is None:
        raise UnsupportedModelError(
            f"{spec.architecture} gives tokens, not scores; a classifier is a ...ForSequenceClassification model, with "
            "its labels in id2label"
        )
    return spec


def value_spec(spec: ModelSpec) -> ModelSpec:
    """The model that has the trunk of `spec` and one score per token.

    Raises:
        UnsupportedModelError: `spec` has a score layer of another width.
    """
    if spec.num_labels not in (None, 1):
        raise UnsupportedModelError(
            f"{spec.architecture} gives {spec.num_labels} scores, a value model gives one (num_labels: 1)"
        )
    return dataclasses.replace(spec, num_labels=1)


def _read_rope(name: str, config: HfConfig) -> RopeSpec:
    """RoPE from either spelling: `rope_theta` + `rope_scaling`, or transformers 5's `rope_parameters`."""
    parameters: dict[str, Any] = dict(config.get("rope_scaling") or {})
    parameters.update(config.get("rope_parameters") or {})
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if float(parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModelError(f"{name}: partial rotary embeddings are not supported (partial_rotary_factor != 1)")
    if kind == "default":
        return RopeSpec(theta)
    if kind == "llama3":
        return RopeSpec(
            theta,
            scaling_factor=float(parameters["factor"]),
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_max_position_embeddings=int(parameters["original_max_position_embeddings"]),
        )
    raise UnsupportedModelError(
        f"{name}: RoPE scaling of type {kind!r} is not supported (supported: 'default', 'llama3'); "
        "remove rope_scaling from config.json to train within the unscaled context"
    )


def _read_dense(name: str, config: HfConfig) -> ModelSpec:
    """The part that Llama, Qwen2 and Qwen3 share."""
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"{name}: activation {config['hidden_act']!r} is not supported (supported: 'silu')")
    if config.get("use_sliding_window"):
        raise UnsupportedModelError(f"{name}: sliding-window attention is not supported (use_sliding_window: true)")
    if config.get("mlp_bias"):
        raise UnsupportedModelError(f"{name}: biases in the MLP are not supported (mlp_bias: true)")
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    groups = int(config.get("num_key_value_heads") or heads)
    if heads % groups:
        raise UnsupportedModelError(f"{name}: {heads} attention heads are not a multiple of {groups} key/value heads")
    return ModelSpec(
        architecture=name,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        ffn_hidden_size=int(config["intermediate_size"]),
        num_attention_heads=heads,
        num_query_groups=groups,
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config["max_position_embeddings"]),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope=_read_rope(name, config),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def _read_without_attention_bias(name: str, config: HfConfig) -> ModelSpec:
    if config.get("attention_bias"):
        raise UnsupportedModelError(f"{name}: biases in attention are not supported (attention_bias: true)")
    return _read_dense(name, config)


def _read_mistral(name: str, config: HfConfig) -> ModelSpec:
    if config.get("sliding_window"):
        raise UnsupportedModelError(
            f"{name}: sliding-window attention is not supported (sliding_window: {config['sliding_window']})"
        )
    return _read_without_attention_bias(name, config)


def _read_qwen2(name: str, config: HfConfig) -> ModelSpec:
    return dataclasses.replace(_read_dense(name, config), qkv_bias=True)


def _read_qwen3(name: str, config: HfConfig) -> ModelSpec:
    return dataclasses.replace(_read_without_attention_bias(name, config), qk_norm=True)


def _read_experts(name: str, config: HfConfig) -> ExpertSpec:
    """The fields that Qwen2-MoE and Qwen3-MoE share."""
    count, top_k = int(config.get("num_experts") or config["num_local_experts"]), int(config["num_experts_per_tok"])
    if top_k > count:
        raise UnsupportedModelError(f"{name}: {top_k} experts for each token are more than the {count} there are")
    every = int(config.get("decoder_sparse_step") or 1)
    dense = set(config.get("mlp_only_layers") or ())
    return ExpertSpec(
        count=count,
        top_k=top_k,
        ffn_hidden_size=int(config["moe_intermediate_size"]),
        normalise=bool(config.get("norm_topk_prob", False)),
        dense_layers=tuple(
            layer for layer in range(int(config["num_hidden_layers"])) if layer in dense or (layer + 1) % every
        ),
    )


def _read_qwen3_moe(name: str, config: HfConfig) -> ModelSpec:
    return dataclasses.replace(_read_qwen3(name, config), experts=_read_experts(name, config))


def _read_qwen2_moe(name: str, config: HfConfig) -> ModelSpec:
    experts = dataclasses.replace(
        _read_experts(name, config),
        shared_ffn_hidden_size=int(config["shared_expert_intermediate_size"]),
        shared_gate=True,
    )
    return dataclasses.replace(_read_dense(name, config), qkv_bias=bool(config.get("qkv_bias", True)), experts=experts)


_READERS: dict[str, Callable[[str, HfConfig], ModelSpec]] = {
    "Llama": _read_without_attention_bias,
    "Mistral": _read_mistral,
    "Qwen2": _read_qwen2,
    "Qwen2Moe": _read_qwen2_moe,
    "Qwen3": _read_qwen3,
    "Qwen3Moe": _read_qwen3_moe,
}


def _with_scores(read: Callable[[str, HfConfig], ModelSpec]) -> Callable[[str, HfConfig], ModelSpec]:
    """The reader of a family's `...ForSequenceClassification`, whose labels are listed in `id2label` (default: 2)."""

    def reader(name: str, config: HfConfig) -> ModelSpec:
        labels = int(config.get("num_labels") or len(config.get("id2label") or (0, 1)))
        return dataclasses.replace(read(name, config), num_labels=labels)

    return reader


FAMILIES: dict[str, Callable[[str, HfConfig], ModelSpec]] = {
    **{f"{family}ForCausalLM": read for family, read in _READERS.items()},
    **{f"{family}ForSequenceClassification": _with_scores(read) for family, read in _READERS.items()},
}
