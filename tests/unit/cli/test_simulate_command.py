"""`relax simulate`: flags are the fields of a plan."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import relax_engine
from relax_engine.cli import main as cli
from relax_engine.simulation import Plan

FLAGS = ["--rollout-batch-size", "8", "--generation", "4", "--train", "5"]


def test_flags_make_the_plan_and_json_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", *FLAGS, "--max-staleness", "1", "--reference", "{seconds: 3}", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    plan = {"rollout_batch_size": 8, "generation": 4, "train": 5, "max_staleness": 1, "reference": {"seconds": 3}}
    assert facts == json.loads(json.dumps(relax_engine.simulate(plan).to_dict()))
    assert facts["step_time"] == pytest.approx(6.0)  # a slot's way is 4 + 3 + 5, for two steps


def test_text_names_every_role(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", *FLAGS, "--mode", "colocate", "--partial-rollout"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["step", "time", "9.000", "s"]
    assert "rollout" in text
    assert "100.0%" in text


def test_flags_change_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("{rollout_batch_size: 8, generation: 4, train: 5}")
    assert cli.main(["simulate", str(path), "--train", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time"] == pytest.approx(5.0)


def test_suggestions_are_a_table_with_colocate_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", *FLAGS, "--max-staleness", "2", "--suggest", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["step", "time"]
    assert sum("fully_async" in line for line in lines) >= 4
    assert sum("colocate" in line for line in lines) == 1
    times = [float(line.split()[0]) for line in lines[1:]]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rollout-batch-size", "8"], "error: plan: generation: Field required\n       plan: train: Field required"),
        (["--train", "{seconds"], "--train {seconds: not a number, list or mapping"),
        (["plan.yaml", "--from-run", "DIR"], "DIR is not the directory of a finished run: it has no config.yaml"),
    ],
)
def test_mistakes_are_named(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", *argv]) == 1
    assert message in capsys.readouterr().err


def test_help_is_quick_and_describes_every_field() -> None:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "relax_engine.cli.main", "simulate", "--help"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert time.monotonic() - started < 5  # about 0.3 s on a quiet core
    assert all(f"--{name.replace('_', '-')}" in done.stdout for name in Plan.model_fields)
