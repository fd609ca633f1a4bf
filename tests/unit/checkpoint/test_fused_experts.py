"""Experts that files hold as one tensor for all of a layer, input by output or output by input."""

import json
import re
from pathlib import Path

import pytest
import torch
from hf_models import assert_same_weights, make_model, read_weights
from safetensors.torch import load_file, save_file
from torch import Tensor

from relax_engine.backends.engines.local.arch import load_architecture
from relax_engine.backends.engines.local.weights import read_weights as engine_weights
from relax_engine.checkpoint import export_checkpoint, import_checkpoint
from relax_engine.checkpoint.adapters import RECORD, AdapterMap, AdapterRecord, AdapterShape, merged
from relax_engine.checkpoint.dcp_writer import DcpWriter
from relax_engine.checkpoint.errors import UnsupportedModelError
from relax_engine.checkpoint.families import model_spec
from relax_engine.checkpoint.fp8 import Fp8
from relax_engine.checkpoint.fused_experts import separated
from relax_engine.checkpoint.hf_reader import HfReader
from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.checkpoint.mapping import WeightMap
from relax_engine.checkpoint.output import LocalOutput

CONFIG = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe",
    "image_token_id": 5,
    "video_token_id": 6,
    "vision_start_token_id": 4,
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_vl_moe_text",
        "num_hidden_layers": 3,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 53,
        "max_position_embeddings": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 10,
        "mlp_only_layers": [1],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    },
    "vision_config": {
        "depth": 1,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_heads": 2,
        "out_hidden_size": 24,
        "patch_size": 2,
        "num_position_embeddings": 4,
        "deepstack_visual_indexes": [0],
    },
}
LAYER = "model.language_model.layers.{}.mlp.experts"


def fused(singles: dict[str, Tensor], *, transposed: bool) -> dict[str, Tensor]:
    """Tensors of single experts as files of the family hold them."""
    found = {name: tensor for name, tensor in singles.items() if ".experts." not in name}
    for layer in sorted({match[1] for name in singles if (match := re.match(r"(.*\.experts)\.\d", name))}):
        for kind in ("gate_up_proj", "down_proj"):
            parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
            matrices = [torch.cat([singles[f"{layer}.{e}.{part}.weight"] for part in parts]) for e in range(4)]
            whole = torch.stack(matrices)
            found[f"{layer}.{kind}"] = (whole.transpose(1, 2) if transposed else whole).contiguous()
    return found


@pytest.fixture(params=[True, False], ids=["published", "transformers"])
def transposed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def origin(tmp_path: Path, transposed: bool) -> Path:
    folder = make_model(tmp_path / "hf", CONFIG, dtype=torch.bfloat16)
    singles = load_file(folder / "model.safetensors")
    save_file(fused(singles, transposed=transposed), folder / "model.safetensors", metadata={"format": "pt"})
    save_file(singles, tmp_path / "singles.safetensors")
    return folder


def test_hf_to_dcp_to_hf_is_bitwise_equal_in_the_layout_of_the_origin(
    tmp_path: Path, origin: Path, transposed: bool
) -> None:
    stored = read_weights(origin)
    assert stored[f"{LAYER.format(2)}.gate_up_proj"].shape == ((4, 24, 20) if transposed else (4, 20, 24))
    imported = import_checkpoint(origin, tmp_path / "run")
    for limit in (5 * 2**30, 3000):
        target = tmp_path / f"out-{limit}"
        exported = export_checkpoint(imported.root, target, origin_hf_dir=origin, max_shard_bytes=limit)
        assert exported.num_tensors == len(stored)
        assert_same_weights(stored, read_weights(exported.path))


def test_reader_and_engine_have_the_weights_of_single_experts(tmp_path: Path, origin: Path) -> None:
    singles, reader = load_file(tmp_path / "singles.safetensors"), HfReader(origin)
    assert_same_weights(singles, {name: reader.tensor(name) for name in reader.names()})
    assert all(reader.shape(name) == tuple(tensor.shape) for name, tensor in singles.items())
    assert_same_weights(singles, engine_weights(load_architecture(origin), origin, torch.bfloat16))


def test_without_weights_to_go_by_files_are_as_published_ones(tmp_path: Path, origin: Path) -> None:
    imported = import_checkpoint(origin, tmp_path / "run", dtype="float32")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps(CONFIG))
    exported = export_checkpoint(imported.root, tmp_path / "out", origin_hf_dir=bare, dtype="bfloat16")
    singles = load_file(tmp_path / "singles.safetensors")
    assert_same_weights(read_weights(exported.path), fused(singles, transposed=True))
    with pytest.raises(UnsupportedModelError, match="experts in one tensor"):
        export_checkpoint(imported.root, tmp_path / "fp8", origin_hf_dir=origin, fp8=Fp8("block"))


def test_adapters_are_merged_into_the_experts(tmp_path: Path, origin: Path, transposed: bool) -> None:
    shape = AdapterShape(2, 8.0, ("linear_fc1", "linear_fc2"))
    adapters = AdapterMap(WeightMap(model_spec(CONFIG)), shape)
    generator = torch.Generator().manual_seed(1)
    halves = {m.name: torch.randn(m.shape, generator=generator) for m in adapters.parameters.values()}
    with CheckpointManager(tmp_path / "run").writing(1, optimizer=False) as directory:
        with DcpWriter(LocalOutput(directory)) as writer:
            for name, half in halves.items():
                writer.add_tensor(name, tuple(half.shape), (0,) * half.dim(), half)
        (directory / RECORD).write_text(AdapterRecord.of(shape, str(origin)).to_json())
    exported = export_checkpoint(tmp_path / "run", tmp_path / "out", origin_hf_dir=origin)
    named = {hf_name: tensor for name, half in halves.items() for hf_name, tensor in adapters.split(name, half)}
    singles = load_file(tmp_path / "singles.safetensors")
    expected = fused({name: merged(name, w, named, 4.0) for name, w in singles.items()}, transposed=transposed)
    assert_same_weights(read_weights(exported.path), expected)
    changed = f"{LAYER.format(0)}.down_proj"
    assert not torch.equal(expected[changed], read_weights(origin)[changed])


def test_a_tensor_that_fits_neither_way_stays_as_it_is() -> None:
    spec = model_spec(CONFIG)
    assert spec.experts is not None
    assert (spec.experts.normalise, spec.experts.dense_layers) == (True, (1,))
    odd = torch.zeros(4, 24, 21)
    [(name, tensor)] = separated(f"{LAYER.format(0)}.gate_up_proj", odd, spec)
    assert (name, tensor is odd) == (f"{LAYER.format(0)}.gate_up_proj", True)
