"""The log of executed tasks, from which the demo counts cache hits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.executions import VARIABLE, executed, read_executions


def test_success_and_failure_leave_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    monkeypatch.setenv(VARIABLE, str(log))
    with executed("convert"):
        pass
    with pytest.raises(ValueError, match="broken"), executed("validate"):
        raise ValueError("broken")
    assert [(entry.task, entry.outcome) for entry in read_executions(log)] == [
        ("convert", "done"),
        ("validate", "failed"),
    ]


def test_without_the_variable_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with executed("convert"):
        pass
    assert read_executions(tmp_path / "log.jsonl") == []
