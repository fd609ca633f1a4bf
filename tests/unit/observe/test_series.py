"""Metrics as series: ranges, a run that goes back, definitions, Prometheus text, and the journal beside them."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from relax_engine.observe.definitions import METRICS, definition, render_markdown
from relax_engine.observe.events import EVENTS, read_events
from relax_engine.observe.journal import PHASES, Journal, read_phases, read_state
from relax_engine.observe.metrics import MetricsLog
from relax_engine.observe.series import RunMetrics

ROOT = Path(__file__).parents[3]


def log(run: Path, steps: int, **more: Any) -> MetricsLog:
    written = MetricsLog(run / "metrics.jsonl")
    for step in range(steps):
        written.write(step, {"train/loss": step / 2, "rollout/raw_reward": 0.25, **more})
    return written


def test_a_range_of_a_series(tmp_path: Path) -> None:
    log(tmp_path, 10)
    found = RunMetrics(tmp_path).query(["train/*"], start=3, end=5)
    assert found == {"train/loss": {"steps": [3, 4, 5], "values": [1.5, 2.0, 2.5]}}


def test_long_series_are_means_of_neighbours(tmp_path: Path) -> None:
    log(tmp_path, 10)
    found = RunMetrics(tmp_path).query(["train/loss"], points=5)
    assert found["train/loss"] == {"steps": [0, 2, 4, 6, 8], "values": [0.25, 1.25, 2.25, 3.25, 4.25]}


def test_a_reader_follows_a_run_that_grows_and_goes_back(tmp_path: Path) -> None:
    written = log(tmp_path, 4)
    metrics = RunMetrics(tmp_path)
    assert metrics.last()["step"] == 3
    written.write(4, {"train/loss": 9.0})
    assert metrics.query(["train/loss"])["train/loss"]["values"][-1] == 9.0
    again = MetricsLog(tmp_path / "metrics.jsonl", start_step=2)
    again.write(2, {"train/loss": 7.0})
    assert metrics.query(["train/loss"])["train/loss"] == {"steps": [0, 1, 2], "values": [0.0, 0.5, 7.0]}


def test_parquet_equals_the_log(tmp_path: Path) -> None:
    log(tmp_path, 3)
    (tmp_path / "eval.jsonl").write_text(json.dumps({"step": 3, "version": 3, "dataset": "d", "eval/d": 0.5}) + "\n")
    RunMetrics(tmp_path).write_parquet(tmp_path / "metrics.parquet")
    rows = pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    assert {"step": 2, "metric": "train/loss", "value": 1.0, "dataset": None} in rows
    assert {"step": 3, "metric": "eval/d", "value": 0.5, "dataset": "d"} in rows
    assert len(rows) == 7


def test_prometheus_text(tmp_path: Path) -> None:
    log(tmp_path, 2, **{"mismatch/ratio/max": float("inf")})
    text = RunMetrics(tmp_path).prometheus()
    assert "\nrelax_train_loss 0.5\n" in text
    assert "\nrelax_mismatch_ratio_max +Inf\n" in text
    assert (
        "# HELP relax_rollout_raw_reward Mean reward of the partition's samples, before normalisation. (reward)" in text
    )


@pytest.mark.parametrize(
    ("name", "defined_as"),
    [
        ("rollout/passrate/pass@4", "rollout/passrate/pass@{k}"),
        ("rollout/staleness/count/2", "rollout/staleness/count/{lag}"),
        ("rollout/groups/masked_tokens", "rollout/groups/masked_tokens"),
        ("rollout/groups/filtered/zero_std_0.5", "rollout/groups/filtered/{reason}"),
        ("rollout/format", "rollout/{part}"),
        ("eval/heldout-pass@8", "eval/{dataset}-pass@{k}"),
        ("perf/update_weights_time", "perf/{phase}_time"),
        ("perf/step_time", "perf/step_time"),
    ],
)
def test_names_have_the_nearest_definition(name: str, defined_as: str) -> None:
    found = definition(name)
    assert found is not None
    assert found.name == defined_as


def test_definitions_are_single_and_the_table_follows_from_them() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert (ROOT / "docs" / "metrics.md").read_text() == render_markdown()
    assert definition("nobody/knows") is None


def test_the_journal_is_read_while_it_is_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.event({"kind": "phases", "role": "actor", "phases": [("train", 3, 1.0, 2.5)]})
    journal.event({"kind": "engine_left", "role": "rollout", "engine": "http://h:1"})
    journal.event({"kind": "step", "role": "actor", "step": 1, "metrics": {}})
    journal.state({"status": "running"})
    with (tmp_path / PHASES).open("a") as file:
        file.write('{"role": "half')
    assert read_phases(tmp_path) == [{"role": "actor", "name": "train", "step": 3, "start": 1.0, "end": 2.5}]
    assert [event["kind"] for event in read_events(tmp_path / EVENTS)] == ["engine_left"]
    assert read_state(tmp_path)["status"] == "running"


def test_a_run_that_has_ended_shows_the_engines_that_it_had(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.state({"status": "running", "engines": [{"url": "a"}], "roles": {"actor": {"step": 3}}, "stream": {"x": 1}})
    journal.state({"status": "finished"})
    state = read_state(tmp_path)
    assert (state["status"], state["engines"], state["roles"]) == ("finished", [{"url": "a"}], {"actor": {"step": 3}})
    assert "stream" not in state


def test_a_journal_that_cannot_be_written_raises_nothing(tmp_path: Path, caplog: Any) -> None:
    journal = Journal(tmp_path / "missing")
    journal.event({"kind": "engine_left", "role": "rollout"})
    journal.state({})
    assert caplog.text.count("not noted") == 1
