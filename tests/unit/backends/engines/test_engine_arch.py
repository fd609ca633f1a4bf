from typing import Any

import pytest

from relax_engine.backends.engines.local.arch import parse_architecture
from relax_engine.backends.engines.local.errors import ModelError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 8192,
    "rope_theta": 500000.0, "eos_token_id": [2, 5],
}  # fmt: skip


def test_defaults_and_derived_sizes() -> None:
    arch = parse_architecture(CONFIG, extra_eos=7)
    assert (arch.head_dim, arch.group_size, arch.num_kv_heads) == (16, 2, 2)
    assert arch.eos_token_ids == (2, 5, 7)
    # Per layer q 64x64, k and v 64x32, o 64x64, three 64x96; the head is 64x100.
    assert arch.flops_per_token == 2 * (2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96) + 64 * 100)
    assert arch.kv_elements_per_token == 2 * 2 * 2 * 16


def test_of_latent_attention_one_vector_and_a_rotary_key_are_cached() -> None:
    latent = {
        "architectures": ["DeepseekV2ForCausalLM"], "kv_lora_rank": 24, "q_lora_rank": None, "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8, "v_head_dim": 20, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 2,
    }  # fmt: skip
    arch = parse_architecture({**CONFIG, **latent})
    assert (arch.num_kv_heads, arch.group_size, arch.head_dim) == (1, 4, 32)
    assert arch.kv_elements_per_token == 2 * 2 * 32
    attention = 64 * 4 * 20 + 32 * 64 + 24 * 4 * (12 + 20) + 4 * 20 * 64
    experts = 8 * 64 + (2 + 2) * 3 * 64 * 32  # router, two chosen and two shared
    assert arch.flops_per_token == 2 * (2 * attention + 3 * 64 * 96 + experts + 64 * 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "config: unknown model architecture 'GPT2LMHeadModel'",
        ),
        ({"architectures": None}, "config.json has no 'architectures'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "gives scores, not tokens"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"use_sliding_window": True}, "sliding-window attention"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "type 'longrope' is not supported"),
        ({"num_key_value_heads": 3}, "4 attention heads are not a multiple of 3 key/value heads"),
        ({"head_dim": 15}, "heads of 15 elements, which must be rotated in pairs"),
        ({"vocab_size": None}, "vocab_size must be a positive integer, got None"),
    ],
)
def test_what_cannot_be_served_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_architecture({**CONFIG, **change})
