"""Adapters as parameters: what they add to each Hugging Face weight, cut over ranks or not; PEFT's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_engine.checkpoint.adapters import (
    AdapterMap,
    AdapterRecord,
    AdapterShape,
    adapter_names,
    lora_name,
    merged,
    read_record,
)
from relax_engine.checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError
from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.mapping import Layout, WeightMap, WeightMappingError
from relax_engine.checkpoint.output import LocalOutput
from relax_engine.checkpoint.peft_directory import read_peft, write_peft
from relax_engine.config.sections.lora import LORA_TARGETS

SHAPE = AdapterShape(2, 6.0, LORA_TARGETS)
SIZES: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 7,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
MODELS = {
    "split": {"architectures": ["Qwen3ForCausalLM"]},
    "fused": {"architectures": ["Glm4ForCausalLM"], "partial_rotary_factor": 0.5, "attention_bias": False},
}


def _maps(**changes: Any) -> tuple[WeightMap, AdapterMap]:
    weights = WeightMap(model_spec({**SIZES, **MODELS["split"], **changes}))
    return weights, AdapterMap(weights, SHAPE)


def _random(adapters: AdapterMap) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    full = {name: torch.randn(mapping.shape) for name, mapping in adapters.parameters.items()}
    return {hf: part for name in full for hf, part in adapters.split(name, full[name])}


@pytest.mark.parametrize("model", MODELS)
def test_parts_are_put_together_and_taken_apart(model: str) -> None:
    _, adapters = _maps(**MODELS[model])
    parts = _random(adapters)
    for name, mapping in adapters.parameters.items():
        full = adapters.merge(name, [parts[hf] for hf in mapping.hf_names])
        assert full.shape == mapping.shape
        assert all(torch.equal(part, parts[hf]) for hf, part in adapters.split(name, full))
        for size in (1, 2):
            shards = [adapters.shard(name, full, rank, size) for rank in range(size)]
            assert torch.equal(adapters.unshard(name, shards), full)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_ranks_together_add_what_the_whole_adapter_does(model: str, size: int) -> None:
    """B's rows on a rank are those of its weight, and know the part, and so the A, that they belong to."""
    weights, adapters = _maps(**MODELS[model], intermediate_size=8)
    parts, x = _random(adapters), torch.randn(5, 8)
    name = "decoder.layers.0.self_attention.linear_qkv.weight"
    _, b_name = adapter_names(name)
    base = weights.parameters[name]
    whole = weights.merge(name, [parts[lora_name(hf, "B")] @ parts[lora_name(hf, "A")] for hf in base.hf_names])
    b = adapters.merge(b_name, [parts[lora_name(hf, "B")] for hf in base.hf_names])
    for rank in range(size):
        own = adapters.shard(b_name, b, rank, size)
        part = adapters.shard(b_name, adapters.part_of_row(b_name), rank, size)[:, 0]
        low = [x @ parts[lora_name(hf, "A")].T for hf in base.hf_names]
        added = torch.stack([low[int(p)] @ row for row, p in zip(own, part, strict=True)], dim=1)
        torch.testing.assert_close(added, x @ weights.shard(name, whole, rank, size).T)


def test_merging_adds_the_scaled_product_where_there_is_an_adapter() -> None:
    a, b, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [0.0]]), torch.ones(2, 2)
    adapters = {lora_name("x.weight", "A"): a, lora_name("x.weight", "B"): b}
    assert merged("x.weight", weight, adapters, 0.5).tolist() == [[2.5, 4.0], [1.0, 1.0]]
    assert merged("y.weight", weight, adapters, 0.5) is weight
    assert merged("x.weight", weight.bfloat16(), adapters, 0.5).dtype == torch.bfloat16


def test_each_expert_has_an_adapter_and_routers_have_none() -> None:
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 6}
    _, adapters = _maps(architectures=["Qwen3MoeForCausalLM"], **experts)
    names = [name for name in adapters.adapted if ".mlp." in name]
    assert {name.split(".")[-3] for name in names} == {"0", "1"}
    assert {adapters.parameters[adapter_names(name)[0]].expert for name in names} == {0, 1}


def test_a_layer_that_the_model_lacks_is_named() -> None:
    weights, _ = _maps()
    with pytest.raises(WeightMappingError, match="Qwen3ForCausalLM has no layer linear_gate"):
        AdapterMap(weights, AdapterShape(2, 6.0, ("linear_qkv", "linear_gate")))


def test_layouts_follow_the_layers() -> None:
    _, adapters = _maps()
    found = {name.removeprefix("decoder.layers.0."): (m.layout, m.shape) for name, m in adapters.parameters.items()}
    assert found == {
        "self_attention.linear_proj.adapter.a": (Layout.COLUMNS, (2, 16)),
        "self_attention.linear_proj.adapter.b": (Layout.REPLICATED, (8, 2)),
        "self_attention.linear_qkv.adapter.a": (Layout.REPLICATED, (3, 2, 8)),
        "self_attention.linear_qkv.adapter.b": (Layout.QKV, (32, 2)),
        "mlp.linear_fc1.adapter.a": (Layout.REPLICATED, (2, 2, 8)),
        "mlp.linear_fc1.adapter.b": (Layout.COLUMNS, (2, 6, 2)),
        "mlp.linear_fc2.adapter.a": (Layout.COLUMNS, (2, 6)),
        "mlp.linear_fc2.adapter.b": (Layout.REPLICATED, (8, 2)),
    }


def test_a_record_is_read_back_and_a_broken_one_named(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    record = AdapterRecord.of(SHAPE, "base")
    (tmp_path / "adapters.json").write_text(record.to_json())
    assert read_record(tmp_path) == record
    assert record.shape == SHAPE
    (tmp_path / "adapters.json").write_text("{}")
    with pytest.raises(DamagedCheckpointError, match=r"adapters\.json cannot be read"):
        read_record(tmp_path)


def _peft(directory: Path, **changes: Any) -> Path:
    _, adapters = _maps()
    write_peft(LocalOutput(directory), _random(adapters), SHAPE, "base")
    path = directory / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return directory


def test_a_peft_directory_is_read_back(tmp_path: Path) -> None:
    _, adapters = _maps()
    found, expected = read_peft(_peft(tmp_path), adapters), _random(adapters)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (2, 6.0, "LORA")
    names = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["target_modules"] == names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 4}, "give --lora-rank 4 --lora-alpha 6.0"),
        ({"use_dora": True}, "a variant of LoRA that is not offered: {'use_dora': True}"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ],
)
def test_other_peft_directories_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    _, adapters = _maps()
    with pytest.raises(DamagedCheckpointError) as caught:
        read_peft(_peft(tmp_path, **changes), adapters)
    assert message in str(caught.value)


def test_what_is_no_peft_directory_or_of_other_layers_is_refused(tmp_path: Path) -> None:
    weights, adapters = _maps()
    with pytest.raises(CheckpointNotFoundError, match=r"no adapter_config\.json"):
        read_peft(tmp_path, adapters)
    fewer = AdapterMap(weights, AdapterShape(2, 6.0, ("linear_qkv",)))
    with pytest.raises(DamagedCheckpointError, match="has, beyond the layers of --lora-target-modules"):
        read_peft(_peft(tmp_path), fewer)
