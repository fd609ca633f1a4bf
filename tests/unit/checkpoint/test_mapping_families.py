"""Reading architectures from config.json."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from relax_engine.checkpoint.families import (
    FAMILIES,
    RopeSpec,
    UnknownArchitectureError,
    UnsupportedModelError,
    model_spec,
    policy_spec,
    value_spec,
)

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
    assert spec.rope == RopeSpec(500000.0, 32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_reads_what_transformers_writes(family: str) -> None:
    import transformers

    name, _, task = family.partition("For")
    config = getattr(transformers, f"{name}Config")(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, sliding_window=None
    ).to_dict()
    spec = model_spec({**config, "architectures": [family]})
    assert spec.qk_norm == name.startswith("Qwen3")
    assert spec.qkv_bias == name.startswith("Qwen2")
    assert spec.head_dim == (128 if name == "Qwen3" else 16)
    assert spec.rope == RopeSpec(10000.0)
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
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "RoPE scaling of type 'yarn' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"num_key_value_heads": 5}, "32 attention heads are not a multiple of 5"),
    ],
)
def test_what_is_not_supported_says_so(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_spec({**LLAMA_1B, **change})


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM lacks the key 'vocab_size'"):
        model_spec({k: v for k, v in LLAMA_1B.items() if k != "vocab_size"})


@pytest.mark.parametrize(("names", "shown"), [(["GPT2LMHeadModel"], "'GPT2LMHeadModel'"), (None, "none")])
def test_an_unknown_architecture_is_named_with_the_supported_ones(names: list[str] | None, shown: str) -> None:
    supported = "LlamaForCausalLM, LlamaForSequenceClassification, MistralForCausalLM"
    with pytest.raises(UnknownArchitectureError, match=f"{shown}.*{supported}"):
        model_spec({**LLAMA_1B, "architectures": names})
