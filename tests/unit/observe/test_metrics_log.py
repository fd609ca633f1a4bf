"""The metrics file of a run that is killed and resumed."""

from pathlib import Path

import pytest

from relax_engine.observe.metrics import MetricsLog, read_metrics


def steps(path: Path) -> list[int]:
    return [record["step"] for record in read_metrics(path)]


def test_lines_are_on_disk_when_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run" / "metrics.jsonl"
    log = MetricsLog(path)
    log.write(0, {"train/loss": 0.5})
    assert read_metrics(path) == [{"step": 0, "train/loss": 0.5}]
    log.write(1, {"train/loss": 0.25})
    assert steps(path) == [0, 1]


def test_a_resume_removes_what_it_will_do_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(5):
        log.write(step, {"value": float(step)})
    resumed = MetricsLog(path, start_step=3)
    assert steps(path) == [0, 1, 2]
    resumed.write(3, {"value": 30.0})
    assert [record["value"] for record in read_metrics(path)] == [0.0, 1.0, 2.0, 30.0]


def test_a_new_run_in_an_old_directory_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).write(0, {"value": 1.0})
    MetricsLog(path)
    assert read_metrics(path) == []


@pytest.mark.parametrize("cut", [1, 5, 15])
def test_a_last_line_cut_off_by_a_crash_is_left_out_and_replaced(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(3):
        log.write(step, {"value": 0.125})
    path.write_bytes(path.read_bytes()[:-cut])
    assert steps(path) == [0, 1]
    resumed = MetricsLog(path, start_step=2)
    resumed.write(2, {"value": 0.5})
    assert [record["value"] for record in read_metrics(path)] == [0.125, 0.125, 0.5]


def test_numbers_survive_exactly(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    values = {"a": 0.1 + 0.2, "b": 1e-45, "c": -3.4028234663852886e38}
    MetricsLog(path).write(7, values)
    MetricsLog(path, start_step=8)
    assert read_metrics(path) == [{"step": 7, **values}]


def test_a_line_that_a_crash_left_out_comes_from_the_checkpoint(tmp_path: Path) -> None:
    """Killed after the checkpoint of step 1 and before its line."""
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).write(0, {"value": 0.5})
    MetricsLog(path, start_step=2, last={"value": 0.25})
    assert [(record["step"], record["value"]) for record in read_metrics(path)] == [(0, 0.5), (1, 0.25)]
    # A line that is there is the fuller one.
    MetricsLog(path, start_step=2, last={"value": 9.0})
    assert [record["value"] for record in read_metrics(path)] == [0.5, 0.25]
