import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hf_models import config, make_model, read_weights
from safetensors.torch import save_file

from relax_engine.checkpoint import CheckpointManager, export_checkpoint, import_checkpoint
from relax_engine.checkpoint.errors import (
    CheckpointNotFoundError,
    DamagedCheckpointError,
    OutputExistsError,
    UnsupportedModelError,
)
from relax_engine.checkpoint.families import UnknownArchitectureError
from relax_engine.cli.export import main as export_main
from relax_engine.cli.import_ import main as import_main


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = {**read_weights(folder), **{k.replace("__", "."): v for k, v in changes.items()}}
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_model(tmp_path / "hf", config())


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lambda d: (d / "config.json").unlink(),
            CheckpointNotFoundError,
            "hf has no config.json; give",
        ),
        (lambda d: (d / "config.json").write_text("{"), DamagedCheckpointError, r"config\.json is not JSON"),
        (
            lambda d: (d / "config.json").write_text(json.dumps(config("MambaForCausalLM"))),
            UnknownArchitectureError,
            "'MambaForCausalLM'; supported: Deepseek",
        ),
        (
            lambda d: rewrite(d, model__layers__0__mlp__up_proj__weight_scale_inv=torch.ones(1, 1)),
            UnsupportedModelError,
            r"has quantised weights \(model\.layers\.0\.mlp\.up_proj\.weight_scale_inv\); dequantise",
        ),
        (lambda d: (d / "model.safetensors").unlink(), CheckpointNotFoundError, r"has no \*\.safetensors"),
        (
            lambda d: rewrite(d, model__layers__1__mlp__up_proj__weight=None),
            DamagedCheckpointError,
            r"hf lacks model\.layers\.1\.mlp\.up_proj\.weight$",
        ),
        (
            lambda d: rewrite(d, visual__weight=torch.ones(2)),
            DamagedCheckpointError,
            r"does not describe: visual\.weight",
        ),
        (
            lambda d: rewrite(d, model__layers__0__mlp__up_proj__weight=torch.ones(40, 23)),
            DamagedCheckpointError,
            r"up_proj\.weight has shape \(40, 23\), its config\.json asks for \(40, 24\)",
        ),
        (
            lambda d: rewrite(d, model__norm__weight=torch.ones(25)),
            DamagedCheckpointError,
            r"model\.norm\.weight has shape \(25,\), its config\.json asks for \(24,\)",
        ),
        (
            lambda d: rewrite(d, model__norm__weight=torch.ones(24, dtype=torch.int8)),
            DamagedCheckpointError,
            r"model\.norm\.weight is stored as I8; dequantise it to one of F32, BF16, F16",
        ),
        (lambda d: truncate(d / "model.safetensors"), DamagedCheckpointError, r"model\.safetensors is truncated"),
    ],
)
def test_a_bad_model_directory_is_refused_by_name_and_nothing_is_written(origin, tmp_path, damage, error, message):
    damage(origin)
    with pytest.raises(error, match=message):
        import_checkpoint(origin, tmp_path / "run")
    assert CheckpointManager(tmp_path / "run").complete_iterations() == []
    assert list(tmp_path.glob("run/iter_*")) == []


def test_an_index_that_names_a_missing_shard(tmp_path: Path):
    origin = make_model(tmp_path / "hf", config(), shards=3)
    (origin / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(DamagedCheckpointError, match=r"json names model-00002-of-00003\.safetensors, which is missing"):
        import_checkpoint(origin, tmp_path / "run")


def test_an_index_that_lists_a_tensor_no_shard_holds(tmp_path: Path):
    origin = make_model(tmp_path / "hf", config(), shards=2)
    path = origin / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.ghost.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(DamagedCheckpointError, match=r"lists model\.ghost\.weight, which no shard holds"):
        import_checkpoint(origin, tmp_path / "run")


def test_existing_outputs_are_refused_and_replaced_only_when_forced(origin: Path, tmp_path: Path):
    run = import_checkpoint(origin, tmp_path / "run").root
    with pytest.raises(OutputExistsError, match="run exists and is not empty"):
        import_checkpoint(origin, run)
    out = tmp_path / "out"
    out.mkdir()
    export_checkpoint(run, out, origin_hf_dir=origin)
    (out / "mine.txt").write_text("keep")
    with pytest.raises(OutputExistsError, match="out exists and is not empty"):
        export_checkpoint(run, out, origin_hf_dir=origin)
    assert (out / "mine.txt").exists()
    export_checkpoint(run, out, origin_hf_dir=origin, force=True)
    assert not (out / "mine.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "out", "run"]
    file = tmp_path / "file"
    file.write_text("not a directory")
    with pytest.raises(OutputExistsError, match="file exists"):
        export_checkpoint(run, file, origin_hf_dir=origin)
    assert export_checkpoint(run, file, origin_hf_dir=origin, force=True).path.is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "hf", "out", "run"]


def test_a_failed_forced_export_keeps_the_old_output(origin: Path, tmp_path: Path):
    run = import_checkpoint(origin, tmp_path / "run")
    out = export_checkpoint(run.root, tmp_path / "out", origin_hf_dir=origin).path
    before = read_weights(out)
    data = run.path / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[len(content) // 2 :] = b"\0" * (len(content) - len(content) // 2)
    data.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"__0_0\.distcp is damaged"):
        export_checkpoint(run.root, out, origin_hf_dir=origin, force=True)
    assert read_weights(out).keys() == before.keys()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "out", "run"]


def test_an_origin_that_does_not_fit_the_checkpoint(origin: Path, tmp_path: Path):
    run = import_checkpoint(origin, tmp_path / "run").root
    deeper = make_model(tmp_path / "deeper", {**config(), "num_hidden_layers": 4})
    with pytest.raises(DamagedCheckpointError, match=r"has shape \(3, .* config\.json asks for \(4, "):
        export_checkpoint(run, tmp_path / "out", origin_hf_dir=deeper)
    untied = make_model(tmp_path / "untied", config(tied=False))
    with pytest.raises(DamagedCheckpointError, match=r"lacks the tensor output_layer\.weight, needed for lm_head"):
        export_checkpoint(run, tmp_path / "out", origin_hf_dir=untied)
    (origin / "config.json").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"has no config\.json"):
        export_checkpoint(run, tmp_path / "out", origin_hf_dir=origin)
    assert not (tmp_path / "out").exists()


def test_a_run_root_means_its_latest_complete_iteration(origin: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = import_checkpoint(origin, tmp_path / "run").root
    CheckpointManager(run).begin(5)
    with caplog.at_level("INFO"):
        result = export_checkpoint(run, tmp_path / "out", origin_hf_dir=origin)
    assert result.source == run / "iter_0000000"
    assert "is a run root: using its latest complete iteration, iter_0000000" in caplog.text
    with pytest.raises(CheckpointNotFoundError, match="no complete iter_NNNNNNN"):
        export_checkpoint(origin, tmp_path / "other", origin_hf_dir=origin)


def test_commands_say_what_was_wrong_and_exit_non_zero(
    origin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run, out = tmp_path / "run", tmp_path / "out"
    assert import_main(["--hf-checkpoint", str(origin), "--output", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "iter_0000000")
    arguments = ["--input-dir", str(run), "--output-dir", str(out), "--origin-hf-dir", str(origin)]
    assert export_main([*arguments, "--max-shard-mb", "1"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert export_main(arguments) == 1
    assert "out exists and is not empty; choose another output or allow replacing it (-f)" in capsys.readouterr().err
    assert export_main([*arguments, "-f", "--dtype", "bfloat16"]) == 0
    assert import_main(["--hf-checkpoint", str(tmp_path), "--output", str(tmp_path / "x")]) == 1
    assert "has no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["import_", "export"])
def test_help_answers_within_a_second_and_without_torch(module: str):
    code = (
        f"import sys\nfrom relax_engine.cli.{module} import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\nsys.exit('torch' in sys.modules)"
    )
    start = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
    assert time.monotonic() - start < 1.0
