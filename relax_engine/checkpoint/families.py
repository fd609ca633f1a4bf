"""Model families: what a Hugging Face `config.json` says about the architecture.

What lives here: one reader per family. What does not: what they read (`relax_engine.checkpoint.model_spec`), parameter
names and layouts (`relax_engine.checkpoint.mapping`), Megatron classes (`relax_engine.backends.megatron`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.checkpoint.model_spec import ExpertSpec, LatentSpec, ModelSpec
from relax_engine.checkpoint.rope import mscale, read_rope, rope_parameters
from relax_engine.multimodal.families import media_family

HfConfig = Mapping[str, Any]


class UnknownArchitectureError(ValueError):
    """The checkpoint's architecture has no family here."""


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


_UNSUPPORTED = {
    "mlp_bias": "biases in the MLP",
    "use_sliding_window": "sliding-window attention",
    "attn_logit_softcapping": "soft caps on attention scores",
    "final_logit_softcapping": "soft caps on logits",
    "clip_qkv": "clipped queries, keys and values",
    "alibi": "linear position biases",
}
"""Keys of a configuration that change the model where they are true, and what they stand for."""


def _refuse_odd_features(name: str, config: HfConfig) -> None:
    """Refuse by name what the models here do not compute, whatever the family."""
    for key, what in _UNSUPPORTED.items():
        if config.get(key):
            raise UnsupportedModelError(f"{name}: {what}: not supported ({key}: {config[key]!r})")
    windows = sorted(set(config.get("layer_types") or ()) - {"full_attention"})
    if windows:
        raise UnsupportedModelError(f"{name}: layers of type {windows[0]!r} are not supported, only 'full_attention'")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"{name}: activation {config['hidden_act']!r} is not supported (supported: 'silu')")


def _positive(name: str, config: HfConfig, key: str) -> int:
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise UnsupportedModelError(f"{name}: {key} must be a positive integer, got {value!r}")
    return value


def _read_dense(name: str, config: HfConfig) -> ModelSpec:
    """The part that Llama, Qwen2 and Qwen3 share."""
    _refuse_odd_features(name, config)
    heads, hidden = (_positive(name, config, key) for key in ("num_attention_heads", "hidden_size"))
    groups = int(config.get("num_key_value_heads") or heads)
    if heads % groups:
        raise UnsupportedModelError(f"{name}: {heads} attention heads are not a multiple of {groups} key/value heads")
    rope, head_dim = read_rope(name, config), int(config.get("head_dim") or hidden // heads)
    return ModelSpec(
        architecture=name,
        num_layers=_positive(name, config, "num_hidden_layers"),
        hidden_size=hidden,
        ffn_hidden_size=_positive(name, config, "intermediate_size"),
        num_attention_heads=heads,
        num_query_groups=groups,
        head_dim=head_dim,
        vocab_size=_positive(name, config, "vocab_size"),
        max_position_embeddings=_positive(name, config, "max_position_embeddings"),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def _read_llama(name: str, config: HfConfig) -> ModelSpec:
    """`attention_bias` is of all four projections of attention."""
    bias = bool(config.get("attention_bias"))
    return dataclasses.replace(_read_dense(name, config), qkv_bias=bias, output_bias=bias)


def _read_mistral(name: str, config: HfConfig) -> ModelSpec:
    if config.get("sliding_window"):
        raise UnsupportedModelError(
            f"{name}: sliding-window attention is not supported (sliding_window: {config['sliding_window']})"
        )
    return _read_dense(name, config)


def _read_qwen2(name: str, config: HfConfig) -> ModelSpec:
    return dataclasses.replace(_read_dense(name, config), qkv_bias=True)


def _read_qwen3(name: str, config: HfConfig) -> ModelSpec:
    return dataclasses.replace(_read_llama(name, config), qk_norm=True)


def _read_glm4(name: str, config: HfConfig) -> ModelSpec:
    """GLM-4-0414: half of each head is rotated, in neighbouring pairs."""
    return dataclasses.replace(
        _read_dense(name, config),
        rope=read_rope(name, config, fraction=0.5, adjacent=True),
        qkv_bias=bool(config.get("attention_bias", True)),
        sandwich_norms=True,
        fused_gate_up=True,
    )


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


def _read_qwen3_vl_moe(name: str, config: HfConfig) -> ModelSpec:
    """The text model of Qwen3-VL with experts, whose scores are always rescaled."""
    experts = dataclasses.replace(_read_experts(name, config), normalise=True, fused_files=True)
    return dataclasses.replace(_read_qwen3(name, config), experts=experts)


def _read_qwen2_moe(name: str, config: HfConfig) -> ModelSpec:
    experts = dataclasses.replace(
        _read_experts(name, config),
        shared_ffn_hidden_size=int(config["shared_expert_intermediate_size"]),
        shared_gate=True,
    )
    return dataclasses.replace(_read_dense(name, config), qkv_bias=bool(config.get("qkv_bias", True)), experts=experts)


def _read_deepseek(name: str, config: HfConfig, experts: ExpertSpec, *, adjacent: bool) -> ModelSpec:
    """What DeepSeek-V2 and V3 share: latent attention, and experts behind the first layers."""
    if config.get("attention_bias"):
        raise UnsupportedModelError(f"{name}: biases in latent attention are not supported (attention_bias: true)")
    if config.get("moe_layer_freq", 1) != 1:
        raise UnsupportedModelError(
            f"{name}: every layer behind the dense ones has experts (moe_layer_freq: 1), not "
            f"every {config['moe_layer_freq']}th"
        )
    latent = _read_latent(name, config)
    plain = {key: value for key, value in config.items() if key != "num_key_value_heads"}  # every head has its own
    rope = read_rope(name, config, adjacent=adjacent)
    if rope.rotated(latent.rotary_dim) != latent.rotary_dim or latent.rotary_dim % 2:
        raise UnsupportedModelError(f"{name}: qk_rope_head_dim must be even and rotated as a whole")
    return dataclasses.replace(
        _read_dense(name, plain | {"head_dim": latent.rotary_dim}),
        rope=rope,
        head_dim=latent.plain_dim + latent.rotary_dim,
        latent=latent,
        experts=experts,
        mtp_layers=int(config.get("num_nextn_predict_layers") or 0),
    )


def _read_latent(name: str, config: HfConfig) -> LatentSpec:
    parameters = rope_parameters(config)
    all_dim = float(parameters.get("mscale_all_dim") or 0.0) if parameters["rope_type"] != "default" else 0.0
    rank = config.get("q_lora_rank")
    return LatentSpec(
        kv_rank=_positive(name, config, "kv_lora_rank"),
        q_rank=None if rank is None else int(rank),
        plain_dim=_positive(name, config, "qk_nope_head_dim"),
        rotary_dim=_positive(name, config, "qk_rope_head_dim"),
        value_dim=_positive(name, config, "v_head_dim"),
        softmax_mscale=mscale(float(parameters["factor"]), all_dim) if all_dim else 1.0,
    )


def _read_deepseek_experts(name: str, config: HfConfig, *, scores: Literal["softmax", "sigmoid"]) -> ExpertSpec:
    count, top_k = _positive(name, config, "n_routed_experts"), _positive(name, config, "num_experts_per_tok")
    groups, top_groups = int(config.get("n_group") or 1), int(config.get("topk_group") or 1)
    if config.get("scoring_func", scores) != scores:
        raise UnsupportedModelError(f"{name}: experts are chosen by {scores}, not by {config['scoring_func']!r}")
    if count % groups or not top_groups <= groups or top_k > count // groups * top_groups:
        raise UnsupportedModelError(
            f"{name}: {top_k} experts for each token cannot be chosen from {top_groups} of {groups} groups of {count} "
            "experts"
        )
    shared = int(config.get("n_shared_experts") or 0) * _positive(name, config, "moe_intermediate_size")
    return ExpertSpec(
        count=count,
        top_k=top_k,
        ffn_hidden_size=_positive(name, config, "moe_intermediate_size"),
        normalise=bool(config.get("norm_topk_prob", False)),
        shared_ffn_hidden_size=shared or None,
        dense_layers=tuple(range(min(int(config.get("first_k_dense_replace") or 0), int(config["num_hidden_layers"])))),
        scores=scores,
        groups=groups,
        top_groups=top_groups,
        scale=float(config.get("routed_scaling_factor", 1.0)),
        shared_name="mlp.shared_experts",
    )


def _read_deepseek_v2(name: str, config: HfConfig) -> ModelSpec:
    experts = _read_deepseek_experts(name, config, scores="softmax")
    method = config.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModelError(
            f"{name}: topk_method {method!r} is not supported (supported: 'greedy', 'group_limited_greedy')"
        )
    if experts.normalise:
        raise UnsupportedModelError(
            f"{name}: norm_topk_prob is not supported: transformers computes this family without"
        )
    if method == "greedy":
        experts = dataclasses.replace(experts, groups=1, top_groups=1)
    return _read_deepseek(name, config, experts, adjacent=True)


def _read_biased_experts(name: str, config: HfConfig) -> ExpertSpec:
    """Chosen by sigmoids with a bias, as DeepSeek-V3's."""
    experts = _read_deepseek_experts(name, config, scores="sigmoid")
    if config.get("topk_method", "noaux_tc") != "noaux_tc":
        raise UnsupportedModelError(f"{name}: topk_method {config['topk_method']!r} is not supported, only 'noaux_tc'")
    if experts.count // experts.groups < 2:
        raise UnsupportedModelError(
            f"{name}: groups of one expert are not supported: the two best make a group's score"
        )
    return dataclasses.replace(experts, bias=True, group_best=2)


def _read_deepseek_v3(name: str, config: HfConfig) -> ModelSpec:
    experts = _read_biased_experts(name, config)
    return _read_deepseek(name, config, experts, adjacent=bool(config.get("rope_interleave", True)))


def _read_glm4_moe(name: str, config: HfConfig) -> ModelSpec:
    """GLM-4.5 to 4.7: half of each head is rotated, a norm of queries and keys is optional."""
    return dataclasses.replace(
        _read_dense(name, config),
        rope=read_rope(name, config, fraction=0.5),
        qkv_bias=bool(config.get("attention_bias")),
        qk_norm=bool(config.get("use_qk_norm")),
        experts=_read_biased_experts(name, config),
        mtp_layers=int(config.get("num_nextn_predict_layers") or 0),
    )


_READERS: dict[str, Callable[[str, HfConfig], ModelSpec]] = {
    "DeepseekV2": _read_deepseek_v2,
    "DeepseekV3": _read_deepseek_v3,
    "Glm4": _read_glm4,
    "Glm4Moe": _read_glm4_moe,
    "Llama": _read_llama,
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


def _with_media(read: Callable[[str, HfConfig], ModelSpec]) -> Callable[[str, HfConfig], ModelSpec]:
    """The reader of a model that sees, whose text model `read` describes."""

    def reader(name: str, config: HfConfig) -> ModelSpec:
        family = media_family(config)
        if family is None:
            raise UnsupportedModelError(f"{name}: config.json names the model_type {config.get('model_type')!r}")
        text = dict(family.text_config)
        for key in ("dtype", "torch_dtype"):
            text[key] = config.get(key) or family.config.get(key) or text.get(key)
        # That of the whole model counts: the text model's own, where both are written, is its class's default.
        tied = (part.get("tie_word_embeddings") for part in (family.config, config, text))
        text["tie_word_embeddings"] = next((value for value in tied if value is not None), False)
        spec = read(name, text)
        try:
            family.axes(spec.head_dim // 2)
        except ValueError as error:
            raise UnsupportedModelError(f"{name}: {error}") from error
        if spec.rope.max_positions is not None:
            raise UnsupportedModelError(f"{name}: dynamic RoPE scaling of media's positions is not supported; use YaRN")
        return dataclasses.replace(spec, media=family)

    return reader


_CLASSIFIERS = {family: read for family, read in _READERS.items() if family != "Glm4Moe"}
"""Families of which transformers has a `...ForSequenceClassification`."""

FAMILIES: dict[str, Callable[[str, HfConfig], ModelSpec]] = {
    **{f"{family}ForCausalLM": read for family, read in _READERS.items()},
    **{f"{family}ForSequenceClassification": _with_scores(read) for family, read in _CLASSIFIERS.items()},
    "Qwen2VLForConditionalGeneration": _with_media(_read_qwen2),
    "Qwen2_5_VLForConditionalGeneration": _with_media(_read_qwen2),
    "Qwen3VLForConditionalGeneration": _with_media(_read_qwen3),
    "Qwen3VLMoeForConditionalGeneration": _with_media(_read_qwen3_vl_moe),
    "Qwen3OmniMoeForConditionalGeneration": _with_media(_read_qwen3_moe),
    "Qwen3OmniMoeThinkerForConditionalGeneration": _with_media(_read_qwen3_moe),
}
