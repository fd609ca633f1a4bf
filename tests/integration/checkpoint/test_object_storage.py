"""Import to and export from S3: the same bits as on a disk, and nothing that looks finished before it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import s3fs

from relax_engine.checkpoint import export_checkpoint, import_checkpoint, resolve_checkpoint
from relax_engine.checkpoint.errors import CheckpointNotFoundError, OutputExistsError
from relax_engine.checkpoint.hf_reader import HfReader
from relax_engine.cli.export import main
from tests.unit.checkpoint.hf_models import assert_same_weights, config, make_model, read_weights

EXPORT = """
import sys
from relax_engine.checkpoint.exporter import export_checkpoint
print("ready", flush=True)
export_checkpoint(sys.argv[1], sys.argv[2], origin_hf_dir=sys.argv[3], max_shard_bytes=2000)
"""


def test_a_model_goes_through_object_storage_and_comes_back(tmp_path: Path, s3_bucket: str) -> None:
    origin = make_model(tmp_path / "hf", config(tied=False), shards=2)
    files = s3fs.S3FileSystem(use_listings_cache=False)
    files.put(str(origin), f"{s3_bucket}/hf", recursive=True)
    imported = import_checkpoint(f"s3://{s3_bucket}/hf", f"s3://{s3_bucket}/run")
    assert imported.path == f"s3://{s3_bucket}/run/iter_0000000" == resolve_checkpoint(f"s3://{s3_bucket}/run")
    local = import_checkpoint(origin, tmp_path / "run")
    remote_files = {Path(p).name: files.cat_file(p) for p in files.find(str(imported.path)[5:])}
    assert remote_files == {p.name: p.read_bytes() for p in Path(local.path).iterdir()}

    out = f"s3://{s3_bucket}/out"
    exported = export_checkpoint(imported.root, out, origin_hf_dir=f"s3://{s3_bucket}/hf", max_shard_bytes=9000)
    assert exported.num_shards > 2
    files.get(f"{s3_bucket}/out", str(tmp_path / "back"), recursive=True)
    assert_same_weights(read_weights(origin), read_weights(tmp_path / "back"))
    assert (tmp_path / "back/tokenizer_config.json").read_text() == (origin / "tokenizer_config.json").read_text()
    assert set(HfReader(out).names()) == set(read_weights(origin))

    with pytest.raises(OutputExistsError, match="out exists and is not empty"):
        export_checkpoint(imported.root, out, origin_hf_dir=origin)
    arguments = ["--input-dir", str(imported.root), "--output-dir", out, "--origin-hf-dir", str(origin)]
    assert main([*arguments, "-f"]) == 0
    left = {path.rpartition("/")[2] for path in files.find(f"{s3_bucket}/out")}
    assert {name for name in left if "safetensors" in name} == {"model.safetensors"}


def test_a_killed_export_or_import_has_no_mark(tmp_path: Path, s3_bucket: str) -> None:
    origin = make_model(tmp_path / "hf", config())
    run = import_checkpoint(origin, tmp_path / "run").root
    files = s3fs.S3FileSystem(use_listings_cache=False)
    command = [sys.executable, "-c", EXPORT, str(run), f"s3://{s3_bucket}/out", str(origin)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    deadline = time.monotonic() + 60
    while not files.find(f"{s3_bucket}/out"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    left = [path.rpartition("/")[2] for path in files.find(f"{s3_bucket}/out")]
    assert left
    assert "config.json" not in left
    with pytest.raises(CheckpointNotFoundError, match=r"has no config\.json"):
        HfReader(f"s3://{s3_bucket}/out")
    export_checkpoint(run, f"s3://{s3_bucket}/out", origin_hf_dir=origin, force=True)
    assert set(HfReader(f"s3://{s3_bucket}/out").names()) == set(read_weights(origin))

    files.pipe_file(f"{s3_bucket}/half/iter_0000000/__0_0.distcp", b"x")
    with pytest.raises(CheckpointNotFoundError, match=r"no complete iter_NNNNNNN"):
        resolve_checkpoint(f"s3://{s3_bucket}/half")
