"""Files elsewhere: on an S3 server and on a hub, as patterns, folders and slices, converted and trained on."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from data_prep.convert import convert
from data_prep.errors import DataError
from relax_engine.rollout.prompt_rows import PromptRows
from tests.integration.data_prep.hub import REPOSITORY, serve_hub


def verl_rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [
        {"prompt": [{"role": "user", "content": f"q{i}"}], "reward_model": {"ground_truth": str(i), "style": "rule"}}
        for i in range(start, stop)
    ]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Two Parquet files, a compressed JSON file and one that is no data, in a folder of their own."""
    folder = tmp_path / "dataset" / "data"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(verl_rows(0, 50)), folder / "a.parquet", row_group_size=20)
    pq.write_table(pa.Table.from_pylist(verl_rows(50, 70)), folder / "b.parquet")
    with gzip.open(folder / "c.jsonl.gz", "wt") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in verl_rows(70, 90))
    (folder / "README.md").write_text("about")
    return folder


def labels(path: Path) -> list[int]:
    return [int(label) for label in pq.read_table(path)["label"].to_pylist()]


def test_s3(dataset: Path, tmp_path: Path, s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}/sets/data"
    s3fs.S3FileSystem(skip_instance_cache=True).put(str(dataset), f"{s3_bucket}/sets/", recursive=True)
    for spec, expected in {
        url: range(90),
        f"{url}/*.parquet": range(70),
        f"{url}/a.parquet[45:60]": range(45, 50),
        f"['{url}/b.parquet[:2]', '{url}/c.jsonl.gz[1:3]']": [50, 51, 71, 72],
    }.items():
        assert labels(convert(spec, tmp_path / "out.parquet", format="verl").path) == list(expected)
    # The same bytes give the same output wherever they lie.
    convert(url, tmp_path / "remote.parquet", format="verl")
    convert(dataset, tmp_path / "local.parquet", format="verl")
    assert (tmp_path / "remote.parquet").read_bytes() == (tmp_path / "local.parquet").read_bytes()
    rows = PromptRows([f"{url}/b.parquet[3:]", f"{url}/c.jsonl.gz"], ["prompt"])
    assert [rows[i]["prompt"][0]["content"] for i in (0, 17, 36)] == ["q53", "q70", "q89"]
    with pytest.raises(DataError, match=r"data file 's3://.*/none\.parquet' does not exist"):
        convert(f"{url}/none.parquet", tmp_path / "out.parquet")


def relax_data(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: `huggingface_hub` reads `HF_ENDPOINT` when it is imported."""
    command = [sys.executable, "-m", "relax_engine.cli.main", "data", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


def test_hugging_face_hub(dataset: Path, tmp_path: Path) -> None:
    with serve_hub(dataset.parent) as endpoint:
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home")}
        url = f"hf://datasets/{REPOSITORY}/data"
        files = f"['{url}/*.parquet', '{url}/c.jsonl.gz[:5]']"
        run = relax_data("convert", files, str(tmp_path / "out.parquet"), "--format", "verl", **environment)
        assert run.returncode == 0, run.stderr
        assert labels(tmp_path / "out.parquet") == list(range(75))
        run = relax_data("inspect", f"{url}/none.parquet", **environment)
        assert (run.returncode, run.stderr) == (1, f"relax data: data file '{url}/none.parquet' does not exist\n")
