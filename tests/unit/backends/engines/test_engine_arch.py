import dataclasses
from typing import Any

import pytest
import torch

from relax_engine.backends.engines.local.arch import inverse_frequencies, parse_architecture
from relax_engine.backends.engines.local.errors import ModelError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 8192,
    "rope_theta": 500000.0, "eos_token_id": [2, 5],
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}  # fmt: skip


@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 4.0}, LLAMA3])
def test_rotary_frequencies_equal_transformers(scaling: dict[str, Any] | None) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    arch = parse_architecture({**CONFIG, "rope_scaling": scaling})
    rope = {"rope_theta": 500000.0, "rope_type": "default", **(scaling or {})}
    rope["rope_type"] = rope.pop("type", rope["rope_type"])
    config = {key: value for key, value in CONFIG.items() if key not in ("rope_theta", "architectures")}
    expected = LlamaRotaryEmbedding(LlamaConfig(**config, rope_parameters=rope)).inv_freq
    torch.testing.assert_close(inverse_frequencies(arch), expected, rtol=1e-6, atol=0.0)


def test_defaults_and_derived_sizes() -> None:
    arch = parse_architecture(CONFIG, extra_eos=7)
    assert (arch.head_dim, arch.group_size, arch.qk_norm, arch.qkv_bias) == (16, 2, False, False)
    assert arch.eos_token_ids == (2, 5, 7)
    # Per layer q 64x64, k and v 64x32, o 64x64, three 64x96; the head is 64x100.
    assert arch.flops_per_token == 2 * (2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96) + 64 * 100)
    assert dataclasses.replace(arch, num_layers=4).kv_elements_per_token == 2 * 4 * 2 * 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not one of LlamaForCausalLM, Mistral"),
        ({"architectures": None}, "architecture None is not one of"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"use_sliding_window": True}, "sliding-window attention is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn' is not supported; supported: def"),
        ({"num_key_value_heads": 3}, "4 heads, 3 key/value heads, head_dim 16 do not fit together"),
        ({"vocab_size": None}, "vocab_size must be a positive integer, got None"),
    ],
)
def test_what_cannot_be_served_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_architecture({**CONFIG, **change})
