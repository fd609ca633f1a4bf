"""Reading architectures from config.json."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.checkpoint.families import FAMILIES, UnknownArchitectureError, model_spec, policy_spec, value_spec
from relax_engine.checkpoint.mapping import carries
from relax_engine.checkpoint.model_spec import LatentSpec
from relax_engine.checkpoint.rope import Llama3Scaling, RopeSpec, YarnScaling

LLAMA_1B: dict[str, Any] = {  # Llama 3.2 1B as published
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def test_a_published_llama() -> None:
    spec = model_spec(LLAMA_1B)
    assert (spec.num_query_groups, spec.head_dim, spec.dtype, spec.tie_word_embeddings) == (8, 64, "bfloat16", True)
    assert (spec.qk_norm, spec.qkv_bias) == (False, False)
    assert spec.rope == RopeSpec(500000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize("family", sorted(name for name in FAMILIES if not name.endswith("ForConditionalGeneration")))
def test_every_family_reads_what_transformers_writes(family: str) -> None:
    import transformers

    name, _, task = family.partition("For")
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"sliding_window": None, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    config = getattr(transformers, f"{name}Config")(**sizes).to_dict()
    spec = model_spec({**config, "architectures": [family]})
    assert spec.qk_norm == name.startswith("Qwen3")
    assert spec.qkv_bias == (name.startswith("Qwen2") or name == "Glm4")
    assert spec.sandwich_norms == spec.fused_gate_up == (name == "Glm4")
    assert spec.head_dim == {"Qwen3": 128, "Glm4": 128, "DeepseekV2": 192, "DeepseekV3": 192}.get(name, 16)
    half = 0.5 if name.startswith("Glm4") else 1.0
    adjacent = name.startswith("Deepseek") or name == "Glm4"
    assert spec.rope == RopeSpec(10000.0, fraction=half, adjacent=adjacent)
    assert (spec.latent is not None) == name.startswith("Deepseek")
    assert spec.num_labels == (None if task == "CausalLM" else 2)  # two labels are transformers' default


@pytest.mark.parametrize("labels", [1, 3])
def test_the_width_of_the_score_layer_is_the_number_of_labels(labels: int) -> None:
    import transformers

    config = transformers.Qwen3Config(num_labels=labels).to_dict()
    spec = model_spec({**config, "architectures": ["Qwen3ForSequenceClassification"]})
    assert spec.num_labels == labels
    with pytest.raises(UnsupportedModelError, match="gives scores, not tokens"):
        policy_spec(spec)
    if labels == 1:
        assert value_spec(spec) == spec
    else:
        with pytest.raises(UnsupportedModelError, match="gives 3 scores"):
            value_spec(spec)


def test_a_language_model_is_a_policy_and_has_the_trunk_of_a_value_model() -> None:
    spec = model_spec(LLAMA_1B)
    assert policy_spec(spec) == spec
    assert value_spec(spec) == dataclasses.replace(spec, num_labels=1)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_theta": 1e6, "rope_scaling": {"type": "default"}},
    ],
)
def test_both_spellings_of_rope(spelling: dict[str, Any]) -> None:
    config = {k: v for k, v in LLAMA_1B.items() if not k.startswith("rope")}
    assert model_spec({**config, **spelling}).rope == RopeSpec(1e6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope"}}, "RoPE scaling of type 'longrope' is not supported"),
        ({"partial_rotary_factor": 1.4}, r"partial_rotary_factor must be in \(0, 1\]"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"mlp_bias": True}, r"biases in the MLP: not supported \(mlp_bias: True\)"),
        ({"use_sliding_window": True}, r"sliding-window attention: not supported \(use_sliding_window: True\)"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layers of type 'sliding_attention'"),
        ({"final_logit_softcapping": 30.0}, r"soft caps on logits: not supported \(final_logit_softcapping: 30.0\)"),
        ({"attn_logit_softcapping": 50.0}, "soft caps on attention scores"),
        ({"vocab_size": 0}, "vocab_size must be a positive integer, got 0"),
        ({"num_key_value_heads": 5}, "32 attention heads are not a multiple of 5"),
    ],
)
def test_what_is_not_supported_says_so(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_spec({**LLAMA_1B, **change})


def test_attention_bias_of_llama_is_of_all_four_projections() -> None:
    spec = model_spec({**LLAMA_1B, "attention_bias": True})
    assert (spec.qkv_bias, spec.output_bias) == (True, True)


DEEPSEEK_V3: dict[str, Any] = {  # as published
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def test_a_published_deepseek() -> None:
    spec = model_spec(DEEPSEEK_V3)
    assert spec.rope == RopeSpec(10000.0, YarnScaling(40.0, 4096), adjacent=True)
    temperature = 0.1 * math.log(40) + 1  # of YaRN, once for queries and once for keys
    assert spec.latent == LatentSpec(512, 1536, 128, 64, 128, softmax_mscale=temperature)
    assert spec.latent.softmax_scale == pytest.approx(192**-0.5 * temperature**2)
    experts = spec.experts
    assert experts is not None
    assert (experts.groups, experts.top_groups, experts.group_best, experts.scale) == (8, 4, 2, 2.5)
    assert (experts.scores, experts.bias, experts.dense_layers) == ("sigmoid", True, (0, 1, 2))
    assert (spec.num_query_groups, spec.head_dim, spec.mtp_layers) == (128, 192, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": True}, "biases in latent attention"),
        ({"moe_layer_freq": 2}, r"moe_layer_freq: 1\), not every 2th"),
        ({"scoring_func": "softmax"}, "experts are chosen by sigmoid, not by 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not supported, only 'noaux_tc'"),
        ({"n_group": 3}, "8 experts for each token cannot be chosen from 4 of 3 groups of 256 experts"),
        ({"num_experts_per_tok": 200}, "200 experts for each token cannot be chosen from 4 of 8 groups"),
        ({"kv_lora_rank": None}, "kv_lora_rank must be a positive integer, got None"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim must be even"),
    ],
)
def test_what_deepseek_models_are_not_supported_says_so(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_spec({**DEEPSEEK_V3, **change})


def test_layers_for_further_tokens_are_carried_and_not_mapped() -> None:
    spec = model_spec(DEEPSEEK_V3)
    assert carries(spec, "model.layers.61.enorm.weight")
    assert not carries(spec, "model.layers.62.enorm.weight")
    assert not carries(spec, "model.layers.60.input_layernorm.weight")
    assert not carries(dataclasses.replace(spec, mtp_layers=0), "model.layers.61.enorm.weight")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM lacks the key 'vocab_size'"):
        model_spec({k: v for k, v in LLAMA_1B.items() if k != "vocab_size"})


@pytest.mark.parametrize(("names", "shown"), [(["GPT2LMHeadModel"], "'GPT2LMHeadModel'"), (None, "none")])
def test_an_unknown_architecture_is_named_with_the_supported_ones(names: list[str] | None, shown: str) -> None:
    supported = "DeepseekV2ForCausalLM, .*LlamaForSequenceClassification, MistralForCausalLM"
    with pytest.raises(UnknownArchitectureError, match=f"{shown}.*{supported}"):
        model_spec({**LLAMA_1B, "architectures": names})


def test_a_published_qwen2_5_vl() -> None:
    """Its text model is described at the top of the file, its positions as a scaling of RoPE."""
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    vision = {"hidden_size": 1280, "out_hidden_size": 2048, "spatial_merge_size": 2, "tokens_per_second": 2}
    ids = {"image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652}
    plain = {key: value for key, value in LLAMA_1B.items() if key not in ("rope_scaling", "attention_bias")}
    heads = {"num_attention_heads": 16, "head_dim": 128, "model_type": "qwen2_5_vl"}
    config = plain | heads | ids | {"vision_config": vision, "rope_scaling": rope}
    spec = model_spec(config | {"architectures": ["Qwen2_5_VLForConditionalGeneration"]})
    assert (spec.qkv_bias, spec.tie_word_embeddings, spec.rope) == (True, True, RopeSpec(500000.0))
    assert spec.media is not None
    assert (spec.media.time_unit, spec.media.deepstack) == (2.0, 0)
    assert spec.media.axes(64).tolist() == [0] * 16 + [1] * 24 + [2] * 24


def test_sections_that_are_not_of_the_head() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    text = {**LLAMA_1B, "rope_scaling": rope, "head_dim": 64}
    config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {}, "tie_word_embeddings": True}
    config |= {"image_token_id": 5, "video_token_id": 6, "architectures": ["Qwen3VLForConditionalGeneration"]}
    with pytest.raises(UnsupportedModelError, match=r"mrope_section \[24, 20, 20\] .* does not divide 32 rotary"):
        model_spec(config)
