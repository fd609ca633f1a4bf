from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relax_engine.checkpoint.dcp_layout import locate
from relax_engine.checkpoint.dcp_reader import DcpReader
from relax_engine.checkpoint.dcp_writer import DcpWriter
from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.checkpoint.model_spec import ExpertSpec, ModelSpec
from relax_engine.checkpoint.output import LocalOutput
from relax_engine.checkpoint.rope import RopeSpec

WHOLE = torch.arange(4 * 6 * 5, dtype=torch.float32).reshape(4, 6, 5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One tensor cut into a grid of eight chunks, as a checkpoint of two layers' halves on two ranks would be."""
    with DcpWriter(LocalOutput(tmp_path)) as writer:
        for i in (0, 2):
            for j in (0, 3):
                for k, width in ((0, 2), (2, 3)):
                    writer.add_tensor("grid", WHOLE.shape, (i, j, k), WHOLE[i : i + 2, j : j + 3, k : k + width])
        writer.add_tensor("half", (4, 2), (0, 0), torch.ones(2, 2, dtype=torch.bfloat16))
        writer.add_object("state/shard_0_1", {"step": 3})
    return tmp_path


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [
        ((0, 0, 0), (4, 6, 5)),
        ((1, 2, 1), (2, 3, 3)),
        ((3, 0, 0), (1, 6, 5)),
        ((2, 3, 2), (2, 3, 3)),
        ((0, 1, 0), (1, 1, 1)),
    ],
)
def test_any_box_is_assembled_from_the_chunks_it_touches(directory: Path, offsets, lengths):
    box = DcpReader(directory).read("grid", offsets, lengths)
    expected = WHOLE[tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True))]
    assert torch.equal(box, expected)


def test_listing_names_tensors_only(directory: Path):
    reader = DcpReader(directory)
    assert reader.keys() == ["grid", "half"]
    assert reader.shape("grid") == (4, 6, 5)
    assert reader.dtype("half") is torch.bfloat16
    assert "state/shard_0_1" not in reader


def test_torch_reads_what_is_written(directory: Path):
    import torch.distributed.checkpoint as dcp

    target = {"grid": torch.zeros(4, 6, 5)}
    dcp.load(target, checkpoint_id=directory, no_dist=True)
    assert torch.equal(target["grid"], WHOLE)


def test_torchs_own_checkpoints_are_read(tmp_path: Path):
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": WHOLE, "nested": {"b": torch.ones(3)}}, checkpoint_id=tmp_path, no_dist=True)
    reader = DcpReader(tmp_path)
    assert torch.equal(reader.read("a", (1, 0, 0), (1, 6, 5))[0], WHOLE[1])
    assert torch.equal(reader.read("nested.b"), torch.ones(3))


def test_damage_is_named(directory: Path, tmp_path: Path):
    with pytest.raises(DamagedCheckpointError, match=r"chunks of half do not cover offsets \(0, 0\), lengths \(4, 2\)"):
        DcpReader(directory).read("half")
    data = directory / "__0_0.distcp"
    content = data.read_bytes()
    data.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedCheckpointError, match=r"__0_0\.distcp is damaged: cannot read grid at byte"):
        DcpReader(directory).read("grid")
    data.unlink()
    with pytest.raises(DamagedCheckpointError, match=r"__0_0\.distcp is missing; it holds grid"):
        DcpReader(directory).read("grid")
    (directory / ".metadata").write_bytes((directory / ".metadata").read_bytes()[:50])
    with pytest.raises(DamagedCheckpointError, match=r"\.metadata cannot be read"):
        DcpReader(directory)
    with pytest.raises(DamagedCheckpointError, match=r"has no \.metadata"):
        DcpReader(tmp_path / "nowhere")


def test_an_unfinished_writer_leaves_no_metadata(tmp_path: Path):
    def fail() -> None:
        with DcpWriter(LocalOutput(tmp_path)) as writer:
            writer.add_tensor("a", (2,), (0,), torch.ones(2))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["__0_0.distcp"]


def test_parameters_are_located_as_megatron_files_them():
    dense = ModelSpec("Any", 9, 8, 16, 2, 1, 4, 11, 64, 1e-6, RopeSpec(1e4), False)
    assert locate("decoder.layers.7.mlp.linear_fc2.weight", dense) == (
        "decoder.layers.mlp.linear_fc2.weight",
        (7,),
        (9,),
    )
    assert locate("decoder.layers.0.input_layernorm.weight", dense) == (
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight",
        (0,),
        (9,),
    )
    assert locate("decoder.final_layernorm.weight", dense) == ("decoder.final_layernorm.weight", (), ())
    experts = ExpertSpec(count=4, top_k=2, ffn_hidden_size=8, normalise=True)
    name = "decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight"
    sparse = replace(dense, experts=experts)
    stored = "decoder.layers.mlp.experts.experts.linear_fc1.weight"
    assert locate(name, sparse) == (stored, (7, 3), (9, 4))
    mixed = replace(dense, experts=replace(experts, dense_layers=(0,)))
    stored = "decoder.layers.7.mlp.experts.experts.linear_fc1.weight"
    assert locate(name, mixed) == (stored, (3,), (4,))
