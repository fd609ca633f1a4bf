"""The coding agent's tasks and verdicts: right edits pass, all others are told what is wrong and leave no trace."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.swe_sandbox.make_data import make_data, make_task
from examples.swe_sandbox.workspace import NO_EDIT, Workspace

SOURCE = "def area(q, d):\n    return q - d"
TESTS = [["area", [7, 2], 14], ["area", [5, 3], 15]]


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("2:    return q * d", None),
        ("2:    return d*q", None),
        ("2:    return q - d", "area(7, 2) is 5, not 14"),
        ("2:    return 14", "area(5, 3) is 14, not 15"),
        ("1:    return q * d", "area(7, 2) fails"),
        ("2:    return q * z", "area(7, 2) fails"),
        ("2:    import os; os.kill(1, 9)", "area(7, 2) fails"),
        ("2:    open('/tmp/seen', 'w')", "area(7, 2) fails"),
        ("3:    return q * d", NO_EDIT),
        ("return q * d", NO_EDIT),
    ],
)
def test_the_tests_decide_and_a_failed_edit_is_taken_back(edit: str, told: str | None, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "work", SOURCE)
    assert workspace.attempt(edit, TESTS) == told
    expected = SOURCE if told else SOURCE.replace("    return q - d", edit.removeprefix("2:"))
    assert (tmp_path / "work" / "module.py").read_text() == expected


def test_no_task_is_in_two_sets_and_the_warm_start_mostly_changes_nothing(tmp_path: Path) -> None:
    rows = {split: pq.read_table(path).to_pylist() for split, path in make_data(tmp_path).items()}
    asked = {split: {row["prompt"][0]["content"] for row in table} for split, table in rows.items()}
    assert sum(map(len, asked.values())) == len(set().union(*asked.values()))
    unchanged = [row["label"].partition(":")[2] in json.loads(row["metadata"])["source"] for row in rows["sft"]]
    assert 0.58 < sum(unchanged) / len(unchanged) < 0.62
    again = [row["prompt"] for row in rows["sft"] if len(row["prompt"]) == 3]
    assert 0.32 < len(again) / len(rows["sft"]) < 0.35


def test_right_edits_pass_and_the_failure_is_the_one_that_is_taught(tmp_path: Path) -> None:
    rng = random.Random(1)
    for number, task in enumerate(make_task(rng) for _ in range(12)):
        workspace = Workspace(tmp_path / str(number), task.source)
        assert task.edit != task.unchanged
        assert workspace.attempt(task.unchanged, task.tests) == task.failure
        assert workspace.attempt(task.edit, task.tests) is None
