"""Trackers, read back with their own readers: the numbers of the log, whatever happened on the way."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from relax_engine.config import RunConfig
from relax_engine.errors import ConfigError
from relax_engine.lineage import ArtifactStore
from relax_engine.observe.forward import LogFollower, forwarding
from relax_engine.observe.metrics import MetricsLog
from relax_engine.observe.series import RunMetrics
from relax_engine.observe.trackers import open_trackers
from relax_engine.observe.trackers.mlflow import mlflow_client
from relax_engine.observe.trackers.mlflow_registry import register
from relax_engine.observe.trackers.tracker import require

Series = dict[str, dict[int, float]]
"""For each metric its value by step."""

BLOCK, HEADER = 32768, 7  # of the LevelDB log format, in which Weights & Biases keeps an offline run


def config(**flags: Any) -> RunConfig:
    return RunConfig.from_flat(hf_checkpoint="m", prompt_data=["p"], experiment_name="tried", **flags)


def a_run(directory: Path) -> Series:
    """Three steps, of which the last two are done again; what the Parquet log holds in the end."""
    log = MetricsLog(directory / "metrics.jsonl")
    for step in range(3):
        log.write(step, {"train/loss": 1.0 / (step + 1), "rollout/raw_reward": 0.25 * step})
    time.sleep(1.5)  # the follower has seen them
    log = MetricsLog(directory / "metrics.jsonl", start_step=1)
    for step in range(1, 4):
        log.write(step, {"train/loss": 2.0 / (step + 1), "rollout/raw_reward": 0.125 * step})
    MetricsLog(directory / "eval.jsonl").write(0, {"version": 0, "dataset": "held", "eval/held": 0.5})
    RunMetrics(directory).write_parquet(directory / "metrics.parquet")
    logged: Series = {}
    for row in pq.read_table(directory / "metrics.parquet").to_pylist():
        logged.setdefault(row["metric"], {})[row["step"]] = row["value"]
    assert logged == {
        "train/loss": {step: 1.0 if step == 0 else 2.0 / (step + 1) for step in range(4)},
        "rollout/raw_reward": {step: 0.125 * step for step in range(4)},
        "eval/held": {0: 0.5},
    }
    return logged


def test_tensorboard_shows_what_the_log_holds(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with forwarding(open_trackers(config(use_tensorboard=True), tmp_path), tmp_path):
        expected = a_run(tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]}
    assert found == {  # TensorBoard keeps single precision
        name: {step: float(np.float32(value)) for step, value in series.items()} for name, series in expected.items()
    }


def test_mlflow_holds_what_the_log_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with forwarding(open_trackers(config(use_mlflow=True, tb_project_name="letters"), tmp_path), tmp_path):
        expected = a_run(tmp_path)
    client = mlflow_client(tmp_path / "mlruns")
    (run,) = client.search_runs([client.get_experiment_by_name("letters").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "tried")
    assert run.data.params["model.hf_checkpoint"] == "m"
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    # The later value of a step is valid.
    assert {name: {m.step: m.value for m in history} for name, history in histories.items()} == expected


def test_a_model_is_registered_once_with_its_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    store = ArtifactStore.open(str(tmp_path / "store"))
    for text in ("one", "two"):
        (tmp_path / "model").write_text(text)
        store.publish(tmp_path / "model", kind="model", name="tiny", metrics={"accuracy": 0.5})
    store.tag("tiny", "production", "tiny@v2")
    for ref, number in (("tiny@v2", "1"), ("tiny@v1", "2"), ("tiny@production", "1")):
        assert register(store, store.resolve(ref)) == number
    found = mlflow_client(tmp_path).get_model_version_by_alias("tiny", "production")
    model = store.resolve("tiny@v2")
    assert (found.tags["relax.ref"], found.tags["relax.sha256"]) == ("tiny@v2", model.digest)
    assert Path(found.source).read_text() == "two"


def test_an_offline_run_of_wandb_holds_what_the_log_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    with forwarding(open_trackers(config(use_wandb=True, tb_project_name="letters"), tmp_path), tmp_path):
        expected = a_run(tmp_path)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30
    while not any(record.WhichOneof("record_type") == "exit" for record in wandb_records(file.read_bytes())):
        assert time.monotonic() < deadline, "its process did not write the end of the run"
        time.sleep(0.1)
    rows: dict[int, dict[str, Any]] = {}
    runs = []
    for record in wandb_records(file.read_bytes()):
        if record.WhichOneof("record_type") == "history":
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            rows[row["step"]] = rows.get(row["step"], {}) | row  # the later one is valid
        if record.WhichOneof("record_type") == "run":
            runs.append((record.run.project, record.run.display_name))
    assert runs[0] == ("letters", "tried")
    found: Series = {}
    for step, row in rows.items():
        for name in expected.keys() & row.keys():
            found.setdefault(name, {})[step] = row[name]
    assert found == expected


def test_an_offline_session_of_clearml_holds_what_the_log_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clearml.backend_interface.metrics.interface import Metrics

    monkeypatch.delenv("CLEARML_API_ACCESS_KEY", raising=False)
    monkeypatch.delenv("CLEARML_OFFLINE_MODE", raising=False)
    monkeypatch.setenv("CLEARML_CONFIG_FILE", str(tmp_path / "none.conf"))
    monkeypatch.setenv("CLEARML_CACHE_DIR", "")  # so that it is put back
    flags = {"notify_urls": ["slack://a/b/c"], "tb_project_name": "letters"}
    before = children()
    with forwarding(open_trackers(config(use_clearml=True, **flags), tmp_path), tmp_path):
        assert children() <= before  # nothing was forked
        expected = a_run(tmp_path)
    (archive,) = (tmp_path / "clearml" / "offline").glob("*.zip")
    shutil.unpack_archive(archive, tmp_path / "session")
    task = json.loads((tmp_path / "session" / "task.json").read_text())
    assert (task["project_name"], task["name"]) == ("letters", "tried")
    assert task["hyperparams"]["model"]["hf_checkpoint"]["value"] == "m"
    assert "slack://" not in json.dumps(task)
    assert "diff --git" not in task["script"]["diff"]
    server = Server()
    # What `Task.import_offline_session` sends to a server.
    assert Metrics.report_offline_session(
        SimpleNamespace(id="restored"), tmp_path / "session", 0, "s3://x", None, server
    )
    found: Series = {}
    for event in server.events:  # the later value of a step is valid
        assert event["task"] == "restored"
        found.setdefault(f"{event['metric']}/{event['variant']}", {})[event["iter"]] = event["value"]
    assert found == expected


def children() -> set[int]:
    """Processes of this one that stay; git, which ClearML asks about the directory, comes and goes."""
    mine = (one for one in psutil.process_iter(["ppid", "name"]) if one.info["ppid"] == os.getpid())
    return {one.pid for one in mine if one.info["name"] != "git"}


class Server:
    """Takes what ClearML's session of a server would send."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def send(self, batch: Any) -> None:
        self.events += batch.requests


def wandb_records(data: bytes) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    found, parts, position = [], [], 7
    while position + HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        if length == 0 and kind == 0:
            position += left
            continue
        parts.append(data[position + HEADER : position + HEADER + length])
        position += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            found.append(record)
            parts = []
    return found


class Broken:
    def __init__(self) -> None:
        self.calls = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.calls += 1
        raise OSError("the disk is full")

    def rewind(self, step: int) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


class Slow(Broken):
    def __init__(self) -> None:
        self.release = threading.Event()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.release.wait(10)

    def close(self) -> None:
        pass


def test_a_tracker_that_fails_is_told_of_once_and_one_that_hangs_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, slow = Broken(), Slow()
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with forwarding([broken, slow], tmp_path):
        began = time.monotonic()
        for step in range(5):
            log.write(step, {"train/loss": 1.0})
        assert time.monotonic() - began < 1
        time.sleep(1.5)
        slow.release.set()
    assert broken.calls == 1
    assert caplog.text.count("Broken takes no more metrics: the disk is full") == 1


def test_the_follower_tells_where_a_run_went_back_to(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = LogFollower(path)
    assert follower.new() == (None, [])
    log = MetricsLog(path)
    log.write(0, {"a": 1.0})
    log.write(1, {"a": 2.0})
    assert follower.new() == (None, [{"step": 0, "a": 1.0}, {"step": 1, "a": 2.0}])
    assert follower.new() == (None, [])
    MetricsLog(path, start_step=1).write(1, {"a": 3.0})
    assert follower.new() == (1, [{"step": 1, "a": 3.0}])
    log = MetricsLog(path, start_step=2)  # resumed where it was
    log.write(2, {"a": math.nan})
    back, (record,) = follower.new()
    assert back is None
    assert math.isnan(record["a"])
    log.write(3, {"a": 4.0})
    with path.open("a") as file:
        file.write('{"step": 4, "a"')  # half a line
    assert follower.new() == (None, [{"step": 3, "a": 4.0}])
    MetricsLog(path, start_step=3)
    assert follower.new() == (3, [])


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--use-wandb needs the package 'no_such_package': pip install"):
        require("no_such_package", "use-wandb")
