"""Checkpoints written here are loaded by the training backend, and the other way round, bit for bit."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from relax_engine.checkpoint import CheckpointManager, export_checkpoint, import_checkpoint

WORLD = Path(__file__).with_name("backend_world.py")
SIZES = {
    "vocab_size": 61,  # odd: padded under tensor parallelism
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def save_model(folder: Path, family: str, *, tied: bool, dtype: torch.dtype = torch.float32) -> None:
    import transformers

    torch.manual_seed(1)
    model_config = getattr(transformers, f"{family}Config")(**SIZES, tie_word_embeddings=tied)
    model = getattr(transformers, f"{family}ForCausalLM")(model_config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)


def run_world(size: int, *arguments: object) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORLD), str(rank), str(size), str(port), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        for process in ranks:
            output = process.communicate(timeout=120)[0]
            assert process.returncode == 0, output[-3000:]
    finally:
        for process in ranks:
            process.kill()


@pytest.mark.parametrize(
    ("family", "tied", "size"),
    [("Qwen3", True, 1), ("Qwen2", False, 2)],
    ids=["qwen3-tied-one-process", "qwen2-untied-two-tensor-ranks"],
)
def test_the_backend_loads_imports_and_its_saves_are_exported(tmp_path: Path, family: str, tied: bool, size: int):
    save_model(tmp_path / "hf", family, tied=tied)
    imported = import_checkpoint(tmp_path / "hf", tmp_path / "imported")
    manager = CheckpointManager(tmp_path / "run")
    with manager.writing(4) as directory:
        run_world(size, tmp_path / "hf", imported.path, directory, tmp_path / "loaded.safetensors")

    origin = load_file(tmp_path / "hf/model.safetensors")
    loaded = load_file(tmp_path / "loaded.safetensors")
    assert loaded.keys() == origin.keys()
    assert all(torch.equal(loaded[name], origin[name]) for name in origin)

    repeated = tmp_path / "repeated"
    repeated.mkdir()
    run_world(size, tmp_path / "hf", imported.path, repeated, tmp_path / "again.safetensors")
    names = sorted(path.name for path in repeated.iterdir())
    assert len(names) == 3 + size
    assert [n for n in names if (repeated / n).read_bytes() != (manager.path(4) / n).read_bytes()] == []

    exported = export_checkpoint(manager.root, tmp_path / "out", origin_hf_dir=tmp_path / "hf")
    written = load_file(exported.path / "model.safetensors")
    assert written.keys() == origin.keys()
    assert all(torch.equal(written[name], origin[name] * 1.5) for name in origin)
    assert_same_logits(exported.path, tmp_path / "hf", scale=1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_transformers_computes_the_same_logits_from_import_and_export(tmp_path: Path, dtype: torch.dtype):
    save_model(tmp_path / "hf", "Llama", tied=False, dtype=dtype)
    run = import_checkpoint(tmp_path / "hf", tmp_path / "run").root
    out = export_checkpoint(run, tmp_path / "out", origin_hf_dir=tmp_path / "hf", max_shard_bytes=20_000).path
    assert len(list(out.glob("*.safetensors"))) > 1
    assert_same_logits(out, tmp_path / "hf")


def assert_same_logits(folder: Path, origin: Path, *, scale: float = 1.0) -> None:
    from transformers import AutoModelForCausalLM

    loaded, reference = (AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval() for path in (folder, origin))
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(scale)
        expected = reference(tokens).logits
        assert expected.std() > 0.01
        assert loaded.dtype == reference.dtype
        assert torch.equal(loaded(tokens).logits, expected)
