import json
from pathlib import Path

import pytest
import torch
from hf_models import assert_same_weights, config, make_model, read_weights

from relax_engine.checkpoint import export_checkpoint, import_checkpoint
from relax_engine.checkpoint.dcp_reader import DcpReader
from relax_engine.checkpoint.errors import DamagedCheckpointError

CASES = [
    pytest.param("Qwen3ForCausalLM", True, torch.float32, 1, id="qwen3-tied-fp32"),
    pytest.param("Qwen3ForCausalLM", False, torch.bfloat16, 3, id="qwen3-untied-bf16-sharded"),
    pytest.param("Qwen2ForCausalLM", True, torch.bfloat16, 1, id="qwen2-bias-tied-bf16"),
    pytest.param("LlamaForCausalLM", False, torch.float32, 2, id="llama-untied-fp32-sharded"),
    pytest.param("LlamaForCausalLM", False, torch.float16, 1, id="llama-untied-fp16"),
    pytest.param("Qwen3ForSequenceClassification", True, torch.float32, 1, id="qwen3-scores"),
    pytest.param("Glm4ForCausalLM", False, torch.bfloat16, 2, id="glm4-bf16-sharded"),
    pytest.param("DeepseekV2ForCausalLM", False, torch.float32, 1, id="deepseek-v2-fp32"),
    pytest.param("DeepseekV3ForCausalLM", False, torch.bfloat16, 3, id="deepseek-v3-bf16-with-a-float32-bias"),
]


@pytest.mark.parametrize(("architecture", "tied", "dtype", "shards"), CASES)
def test_hf_to_dcp_to_hf_to_dcp_is_bitwise_equal(tmp_path: Path, architecture, tied, dtype, shards):
    origin = make_model(tmp_path / "hf", config(architecture, tied=tied, dtype=dtype), dtype=dtype, shards=shards)
    imported = import_checkpoint(origin, tmp_path / "run")
    exported = export_checkpoint(imported.root, tmp_path / "out", origin_hf_dir=origin)
    assert_same_weights(read_weights(origin), read_weights(exported.path))
    again = import_checkpoint(exported.path, tmp_path / "again")
    first, second = DcpReader(imported.path), DcpReader(again.path)
    assert sorted(first.keys()) == sorted(second.keys())
    assert_same_weights(*({key: reader.read(key) for key in reader.keys()} for reader in (first, second)))  # noqa: SIM118
    assert ("lm_head.weight" in read_weights(exported.path)) is not tied
    assert ("score.weight" in read_weights(exported.path)) is architecture.endswith("ForSequenceClassification")


def test_layers_for_further_tokens_come_out_as_they_went_in(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    described = {**config("DeepseekV3ForCausalLM", tied=False), "num_nextn_predict_layers": 2}
    origin = make_model(tmp_path / "hf", described, dtype=torch.bfloat16, shards=2)
    assert "model.layers.4.eh_proj.weight" in read_weights(origin)
    imported = import_checkpoint(origin, tmp_path / "run")
    exported = export_checkpoint(imported.root, tmp_path / "out", origin_hf_dir=origin)
    assert_same_weights(read_weights(origin), read_weights(exported.path))
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps(described))
    without = export_checkpoint(imported.root, tmp_path / "without", origin_hf_dir=bare)
    assert exported.num_tensors - without.num_tensors == 6
    assert "the layers for further tokens are left out" in caplog.text


def test_a_bias_of_the_router_stays_float32_in_an_export_of_another_type(tmp_path: Path):
    origin = make_model(tmp_path / "hf", config("DeepseekV3ForCausalLM", tied=False))
    imported = import_checkpoint(origin, tmp_path / "run", dtype="bfloat16")
    exported = export_checkpoint(imported.root, tmp_path / "out", origin_hf_dir=origin, dtype="bfloat16")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert torch.equal(read_weights(exported.path)[name], read_weights(origin)[name])
    assert read_weights(exported.path)["model.layers.1.mlp.gate.weight"].dtype == torch.bfloat16


def test_a_critic_is_exported_as_a_reward_model_and_not_as_a_language_model(tmp_path: Path):
    """Its tied embedding would otherwise pass for a vocabulary projection."""
    scores = {**config("Qwen3ForSequenceClassification"), "id2label": {"0": "value"}}
    imported = import_checkpoint(make_model(tmp_path / "critic", scores), tmp_path / "run")
    policy = make_model(tmp_path / "hf", config())
    with pytest.raises(DamagedCheckpointError, match=r"has a score layer.*ForSequenceClassification"):
        export_checkpoint(imported.root, tmp_path / "out", origin_hf_dir=policy)
    assert not (tmp_path / "out").exists()
    exported = export_checkpoint(imported.root, tmp_path / "out", origin_hf_dir=tmp_path / "critic")
    assert read_weights(exported.path)["score.weight"].shape == (1, 24)


def test_importing_and_exporting_twice_gives_the_same_bytes(tmp_path: Path):
    origin = make_model(tmp_path / "hf", config(), shards=2)
    runs = [import_checkpoint(origin, tmp_path / name).root for name in ("one", "elsewhere")]
    outs = [export_checkpoint(run, tmp_path / f"out-{run.name}", origin_hf_dir=origin).path for run in runs]
    for first, second in (runs, outs):
        files = [path.relative_to(first) for path in sorted(first.rglob("*")) if path.is_file()]
        assert len(files) >= 5
        assert files == [path.relative_to(second) for path in sorted(second.rglob("*")) if path.is_file()]
        assert [f for f in files if (first / f).read_bytes() != (second / f).read_bytes()] == []


def test_keys_and_shapes_are_megatrons(tmp_path: Path):
    origin = make_model(tmp_path / "hf", config(tied=False))
    reader = DcpReader(import_checkpoint(origin, tmp_path / "run").path)
    assert {key: reader.shape(key) for key in reader.keys()} == {  # noqa: SIM118
        "embedding.word_embeddings.weight": (53, 24),
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight": (3, 24),
        "decoder.layers.self_attention.linear_proj.weight": (3, 24, 32),
        "decoder.layers.self_attention.linear_qkv.weight": (3, 64, 24),
        "decoder.layers.self_attention.q_layernorm.weight": (3, 8),
        "decoder.layers.self_attention.k_layernorm.weight": (3, 8),
        "decoder.layers.mlp.linear_fc1.layer_norm_weight": (3, 24),
        "decoder.layers.mlp.linear_fc1.weight": (3, 80, 24),
        "decoder.layers.mlp.linear_fc2.weight": (3, 24, 40),
        "decoder.final_layernorm.weight": (24,),
        "output_layer.weight": (53, 24),
    }
    hf = read_weights(origin)
    fc1 = reader.read("decoder.layers.mlp.linear_fc1.weight", (1, 0, 0), (1, 80, 24))[0]
    assert torch.equal(fc1[:40], hf["model.layers.1.mlp.gate_proj.weight"])
    assert torch.equal(fc1[40:], hf["model.layers.1.mlp.up_proj.weight"])


def test_types_are_converted_on_the_way_in_and_out(tmp_path: Path):
    origin = make_model(tmp_path / "hf", config())
    result = import_checkpoint(origin, tmp_path / "run", dtype="bfloat16")
    exported = export_checkpoint(result.root, tmp_path / "out", origin_hf_dir=origin)
    assert exported.dtype == "bfloat16"
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in read_weights(origin).items()}
    assert_same_weights(read_weights(exported.path), expected)
    assert json.loads((exported.path / "config.json").read_text())["dtype"] == "bfloat16"
    widened = export_checkpoint(result.root, tmp_path / "wide", origin_hf_dir=origin, dtype="float32")
    assert_same_weights(read_weights(widened.path), {k: v.float() for k, v in expected.items()})
    assert json.loads((widened.path / "config.json").read_text()) == config()
    with pytest.raises(ValueError, match="unknown dtype 'int4'; one of float32, bfloat16, float16"):
        import_checkpoint(origin, tmp_path / "other", dtype="int4")


def test_an_older_config_keeps_its_own_key_for_the_type(tmp_path: Path):
    older = config()
    older["torch_dtype"] = older.pop("dtype")
    origin = make_model(tmp_path / "hf", older)
    run = import_checkpoint(origin, tmp_path / "run").root
    exported = export_checkpoint(run, tmp_path / "out", origin_hf_dir=origin, dtype="bfloat16")
    written = json.loads((exported.path / "config.json").read_text())
    assert written == {**older, "torch_dtype": "bfloat16"}


def test_shards_respect_their_limit_and_the_index_finds_every_tensor(tmp_path: Path):
    origin = make_model(tmp_path / "hf", config())
    run = import_checkpoint(origin, tmp_path / "run").root
    limit = 9000
    result = export_checkpoint(run, tmp_path / "out", origin_hf_dir=origin, max_shard_bytes=limit)
    index = json.loads((result.path / "model.safetensors.index.json").read_text())
    files = sorted(result.path.glob("*.safetensors"))
    assert result.num_shards == len(files) > 3
    assert [f.name for f in files] == sorted(set(index["weight_map"].values()))
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert index["metadata"]["total_size"] == result.nbytes == sum(t.nbytes for t in read_weights(origin).values())
    sizes = {name: tensor.nbytes for name, tensor in read_weights(origin).items()}
    for file in files:
        held = [name for name, shard in index["weight_map"].items() if shard == file.name]
        assert sum(sizes[name] for name in held) <= limit or len(held) == 1
    assert_same_weights(read_weights(origin), read_weights(result.path))


def test_the_export_carries_what_the_tokenizer_needs_and_nothing_else(tmp_path: Path):
    origin = make_model(tmp_path / "hf", config(), shards=2)
    (origin / "README.md").write_text("card of the base model")
    (origin / "pytorch_model.bin").write_text("old")
    (origin / "additional_chat_templates").mkdir()
    (origin / "additional_chat_templates/tool.jinja").write_text("t")
    run = import_checkpoint(origin, tmp_path / "run").root
    out = export_checkpoint(run, tmp_path / "out", origin_hf_dir=origin).path
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()) == [
        "additional_chat_templates/tool.jinja",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"
