"""Hugging Face weights <-> Megatron parameters: layouts, sharding, streaming, errors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from relax_engine.checkpoint.families import FAMILIES, model_spec
from relax_engine.checkpoint.mapping import Assembler, Layout, WeightMap, WeightMappingError, padded_vocab_size
from relax_engine.checkpoint.model_spec import ModelSpec

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 3,
    "vocab_size": 7,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def _spec(**changes: Any) -> ModelSpec:
    return model_spec({**CONFIG, **changes})


def _hf_tensors(weights: WeightMap) -> dict[str, torch.Tensor]:
    """Distinct values for every element of every Hugging Face tensor."""
    count = 0
    tensors = {}
    for name, mapping in weights.parameters.items():
        size = torch.Size(mapping.shape).numel()
        full = torch.arange(count, count + size, dtype=torch.float32).reshape(mapping.shape)
        tensors.update(weights.split(name, full))
        count += size
    return tensors


@pytest.mark.parametrize("family", sorted(name for name in FAMILIES if not name.endswith("ForConditionalGeneration")))
@pytest.mark.parametrize("tied", [True, False])
def test_names_and_shapes_are_those_that_transformers_writes(family: str, tied: bool, tmp_path: Path) -> None:
    import transformers

    hidden = CONFIG["num_attention_heads"] * CONFIG["head_dim"]  # Qwen2 has no head_dim of its own
    config = {**CONFIG, "architectures": [family], "tie_word_embeddings": tied, "hidden_size": hidden}
    if "Moe" in family:
        config |= {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 5, "mlp_only_layers": [1]}
        config |= {"shared_expert_intermediate_size": 4}
    if family.startswith("Deepseek"):
        config |= {"num_key_value_heads": 4, "kv_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2}
        config |= {"v_head_dim": 4, "q_lora_rank": 6 if "V3" in family else None, "n_group": 2, "topk_group": 1}
        config |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5}
        config |= {"first_k_dense_replace": 1, "n_shared_experts": 2}
    if family.startswith("Glm4Moe"):
        config |= {"n_routed_experts": 4, "use_qk_norm": True, "attention_bias": True}
        config |= {"first_k_dense_replace": 1, "n_shared_experts": 1}
    if family.startswith("Glm4"):
        config |= {"head_dim": 4, "pad_token_id": None, "eos_token_id": 0}
    config["sliding_window"] = None
    sizes = {k: v for k, v in config.items() if k != "architectures"}
    model = getattr(transformers, family)(getattr(transformers, f"{family.partition('For')[0]}Config")(**sizes))
    model.save_pretrained(tmp_path)
    weights = WeightMap(model_spec(config))
    with safe_open(tmp_path / "model.safetensors", framework="pt") as stored:
        expected = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    actual = {
        hf_name: tuple(tensor.shape)
        for name, mapping in weights.parameters.items()
        for hf_name, tensor in weights.split(name, torch.empty(mapping.shape))
    }
    assert {name: actual.get(name) for name in expected} == expected
    assert actual.keys() - expected.keys() <= ({"lm_head.weight"} if tied else set())
    assert weights.hf_names() == list(actual)


def test_qkv_is_interleaved_group_by_group() -> None:
    weights = WeightMap(_spec())
    q, k, v = (torch.full((n * 3, 8), 0.0) for n in (4, 2, 2))
    for head in range(4):
        q[head * 3 : head * 3 + 3] = head
    for group in range(2):
        k[group * 3 : group * 3 + 3] = 10 + group
        v[group * 3 : group * 3 + 3] = 20 + group
    merged = weights.merge("decoder.layers.0.self_attention.linear_qkv.weight", [q, k, v])
    assert merged[::3, 0].tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_a_rank_holds_its_slice_of_gate_above_its_slice_of_up() -> None:
    weights = WeightMap(_spec())
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    full = weights.merge(
        name, [torch.arange(6.0)[:, None].expand(6, 8), torch.arange(10.0, 16.0)[:, None].expand(6, 8)]
    )
    assert weights.shard(name, full, 0, 2)[:, 0].tolist() == [0, 1, 2, 10, 11, 12]
    assert weights.shard(name, full, 1, 2)[:, 0].tolist() == [3, 4, 5, 13, 14, 15]


@pytest.mark.parametrize("family", ["Qwen3ForCausalLM", "Qwen2ForCausalLM"])
@pytest.mark.parametrize("size", [1, 2])
def test_shards_of_every_parameter_join_to_the_full_one(family: str, size: int) -> None:
    weights = WeightMap(_spec(architectures=[family]))
    for name, mapping in weights.parameters.items():
        full = torch.randn(mapping.shape)
        shards = [weights.shard(name, full, rank, size) for rank in range(size)]
        assert torch.equal(weights.unshard(name, shards), full), name
        if mapping.layout is not Layout.REPLICATED:
            assert sum(shard.numel() for shard in shards) == full.numel() * (
                padded_vocab_size(7, size) / 7 if mapping.layout is Layout.VOCAB else 1
            )


def test_vocabulary_is_padded_with_zeros_on_the_last_rank_only() -> None:
    weights = WeightMap(_spec(vocab_size=7))
    last = weights.shard("output_layer.weight", torch.ones(7, 8), 1, 2)
    assert last[:, 0].tolist() == [1, 1, 1, 0]


def test_key_value_heads_that_ranks_cannot_share_are_refused() -> None:
    weights = WeightMap(_spec(num_attention_heads=12, num_key_value_heads=2))
    name = "decoder.layers.0.self_attention.linear_qkv.weight"
    with pytest.raises(WeightMappingError, match="2 key/value heads cannot be shared by 3"):
        weights.shard(name, torch.empty(48, 8), 0, 3)
    assert len(weights.shard(name, torch.empty(48, 8), 3, 4)) == 12  # a part of a head: the layer puts them together


def test_a_width_that_does_not_divide_is_refused() -> None:
    weights = WeightMap(_spec(intermediate_size=5))
    with pytest.raises(WeightMappingError, match=r"linear_fc2.*size 5 is not divisible by 2"):
        weights.shard("decoder.layers.0.mlp.linear_fc2.weight", torch.empty(8, 5), 0, 2)


@pytest.mark.parametrize("seed", range(3))
def test_assembling_in_any_order_inverts_split(seed: int) -> None:
    weights = WeightMap(_spec())
    tensors = _hf_tensors(weights)
    order = list(tensors)
    random.Random(seed).shuffle(order)
    assembler, full = Assembler(weights), {}
    for hf_name in order:
        complete = assembler.add(hf_name, tensors[hf_name])
        if complete is not None:
            full[complete[0]] = complete[1]
    assembler.finish()
    assert full.keys() == weights.parameters.keys()
    again = {hf_name: t for name in weights.parameters for hf_name, t in weights.split(name, full[name])}
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_missing_tensors_are_named() -> None:
    weights = WeightMap(_spec(tie_word_embeddings=True))
    assembler = Assembler(weights)
    for name, tensor in _hf_tensors(weights).items():
        if name not in ("model.norm.weight", "model.layers.1.self_attn.k_proj.weight"):
            assembler.add(name, tensor)
    missing = r"2 tensors are missing: model\.layers\.1\.self_attn\.k_proj\.weight, model\.norm\.weight$"
    with pytest.raises(WeightMappingError, match=missing):
        assembler.finish()


def test_unexpected_repeated_and_misshapen_tensors_are_named() -> None:
    weights = WeightMap(_spec(tie_word_embeddings=True))
    assembler = Assembler(weights)
    assert assembler.add("lm_head.weight", torch.empty(7, 8)) is None  # tied: the embedding serves
    assert assembler.add("model.layers.0.self_attn.rotary_emb.inv_freq", torch.empty(2)) is None
    with pytest.raises(WeightMappingError, match=r"unexpected tensor 'model\.layers\.0\.self_attn\.q_proj\.bias'"):
        assembler.add("model.layers.0.self_attn.q_proj.bias", torch.empty(12))
    assembler.add("model.norm.weight", torch.empty(8))
    with pytest.raises(WeightMappingError, match=r"'model\.norm\.weight' came twice"):
        assembler.add("model.norm.weight", torch.empty(8))
    with pytest.raises(WeightMappingError, match=r"word_embeddings\.weight needs shape \(7, 8\).*\(9, 8\)"):
        assembler.add("model.embed_tokens.weight", torch.empty(9, 8))
    prefix = "model.layers.0.self_attn."
    assembler.add(prefix + "q_proj.weight", torch.empty(12, 8))
    assembler.add(prefix + "k_proj.weight", torch.empty(5, 8))
    with pytest.raises(WeightMappingError, match="do not fit 2 groups"):
        assembler.add(prefix + "v_proj.weight", torch.empty(6, 8))
