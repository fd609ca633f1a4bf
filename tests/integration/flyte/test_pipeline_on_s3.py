"""The whole pipeline on a bucket: the digests of a directory, and a training that outlives its machine."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import s3fs
from letters import command, environment, prompts, pyflyte, settings

from examples.tiny_math.make_model import make_model
from relax_engine.lineage import ArtifactStore

STEPS = 4
POST_TRAINING = ("workflows/post_training.py", "post_training")
REPEATABLE = ("base", "train-raw", "heldout-raw", "train", "heldout", "start", "model")
"""Artifacts whose bytes follow from the inputs; the others hold, in some file, what a clock said."""


def bring(source: Path, place: str) -> list[str]:
    """Put prompts and model where the pipeline is to find them, a directory or a URL; the workflow's inputs."""
    inputs = []
    for flag, name in (
        ("train_prompts", "train.parquet"),
        ("heldout_prompts", "heldout.parquet"),
        ("base_model", "model"),
    ):
        if "://" in place:
            s3fs.S3FileSystem().put(str(source / name), f"{place}/{name}", recursive=True)
        inputs += [f"--{flag}", f"{place}/{name}"]
    return [*inputs, "--config", str(source / "run.yaml"), "--name", "letters", "--seed", "3"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Prompts, a model and a configuration that dumps its rollouts."""
    directory = tmp_path / "source"
    directory.mkdir()
    prompts(directory / "train.parquet", "first", 64)
    prompts(directory / "heldout.parquet", "first", 16)
    make_model(directory / "model")
    settings(directory / "run.yaml", num_rollout=STEPS, save="s", save_interval=1, dump_details="kept", run_dir="r")
    return directory


def digests(store: ArtifactStore) -> dict[str, str]:
    """Content by name, with the files of the checkpoint (weights, optimizer) and the scores of every prompt."""
    found = {name: store.resolve(f"letters-{name}").digest for name in REPEATABLE}
    for entry in store.resolve("letters-checkpoint").files:
        if entry.path not in ("run_state.json", "checkpoint.json"):
            found[f"checkpoint {entry.path}"] = entry.sha256
    for stage in ("before", "after"):
        files = {entry.path: entry.sha256 for entry in store.resolve(f"letters-evaluation-{stage}").files}
        found[f"scores {stage}"] = files["prompt_scores.json"]
    return found


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_bucket_gives_the_digests_of_a_directory(source: Path, s3_bucket: str, tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.mkdir()
    remote.mkdir()
    pyflyte(local, *POST_TRAINING, *bring(source, str(source)))
    url = f"s3://{s3_bucket}/team/store"
    inputs = bring(source, f"s3://{s3_bucket}/in")
    pyflyte(remote, *POST_TRAINING, *inputs, store=url)

    expected = digests(ArtifactStore.open(str(local / "artifacts")))
    store = ArtifactStore.open(url)
    found = digests(store)
    print("\n".join(f"{name:<16} {digest[:16]} {expected[name][:16]}" for name, digest in found.items()))
    assert found == expected
    assert [
        problem for name in store.names() for version in store.versions(name) for problem in store.verify(version)
    ] == []
    record = store.fetch("letters-run")
    assert len(list((record / "details" / "rollout_data").glob("*.jsonl"))) == STEPS
    assert f"Samples of step {STEPS - 1}" in (record / "report.html").read_text()
    keys = s3fs.S3FileSystem(use_listings_cache=False).find(f"{s3_bucket}/team/store")
    folders = {key.removeprefix(f"{s3_bucket}/team/store/").partition("/")[0] for key in keys}
    assert {"blobs", "manifests", "refs", "flyte", "work"} <= folders
    assert {key.split("/work/")[1].partition("/")[0] for key in keys if "/work/" in key} == {"converted"}
    assert not (remote / "artifacts").exists()

    # On another machine, which has Flyte's cache and nothing else, every result is there.
    shutil.rmtree(remote / "work")
    log = remote / "executions.jsonl"
    log.unlink()
    pyflyte(remote, *POST_TRAINING, *inputs, store=url)
    assert not log.exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_training_goes_on_where_its_lost_machine_had_saved(source: Path, s3_bucket: str, tmp_path: Path) -> None:
    url = f"s3://{s3_bucket}/team/store"
    inputs = [*bring(source, str(source)), "--overrides", json.dumps({"num_rollout": 12, "lr_warmup_iters": 0})]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with (tmp_path / "first.log").open("w") as log:
        process = subprocess.Popen(
            command(*POST_TRAINING, *inputs), cwd=first, env=environment(first, url), stdout=log, stderr=log
        )
    files = s3fs.S3FileSystem(use_listings_cache=False)
    deadline = time.monotonic() + 900
    while not files.glob(f"{s3_bucket}/team/store/work/train-*/checkpoints/iter_*/mirror.json"):
        assert process.poll() is None, (tmp_path / "first.log").read_text()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while first.exists():  # the run's other processes notice, and write until then
        assert time.monotonic() < deadline
        shutil.rmtree(first, ignore_errors=True)

    pyflyte(second, *POST_TRAINING, *inputs, store=url)
    store = ArtifactStore.open(url)
    result = json.loads((store.fetch("letters-run") / "result.json").read_text())
    print(f"{result['new_steps']} of {result['steps']} steps on the second machine")
    assert result["steps"] == 12
    assert 0 < result["new_steps"] < 12
    assert [len(store.versions(f"letters-{name}")) for name in ("run", "checkpoint", "model", "report")] == [1, 1, 1, 1]
