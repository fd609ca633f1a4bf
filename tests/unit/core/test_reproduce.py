"""Comparing a run with its repetition: steps, numbers, and what they were made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relax_engine.config import RunConfig
from relax_engine.core.environment import describe_environment, differences
from relax_engine.core.reproduce import Agreement, ReproduceError, agree, reproduce


def steps(*losses: float) -> dict[int, dict[str, float]]:
    return {step: {"train/loss": loss} for step, loss in enumerate(losses)}


def test_the_first_different_step_and_the_largest_difference_are_named() -> None:
    assert agree("train/loss", steps(1.0, 2.0), steps(1.0, 2.0)) == Agreement("train/loss", 2, 0.0, None)
    assert agree("train/loss", steps(1.0, 2.0, 3.0), steps(1.0, 2.5, 2.0)) == Agreement("train/loss", 3, 1.0, 1)
    assert agree("train/loss", steps(1.0, 2.0), steps(1.0)) == Agreement("train/loss", 1, 0.0, 1)


def test_the_environment_holds_versions_and_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["relax", "train", "--hf-token", "a plain word"])
    record = describe_environment(RunConfig.from_flat(hf_checkpoint="m", prompt_data=["p"], seed=7))
    assert record["seeds"]["seed"] == 7
    assert record["packages"]["pytest"] == pytest.__version__
    assert record["command"].startswith("relax train --hf-token")
    assert "plain" not in json.dumps(record)
    other: dict[str, Any] = {**record, "packages": {**record["packages"], "pytest": "0.1"}, "git_commit": "f" * 40}
    assert differences(record, record) == []
    lines = differences(record, other)
    assert f"packages: pytest {pytest.__version__} -> 0.1" in lines
    assert lines[0].startswith("git_commit: ")


def test_what_cannot_be_reproduced_says_why(tmp_path: Path) -> None:
    with pytest.raises(ReproduceError, match="nowhere is neither the directory of a run nor one in the store"):
        reproduce("nowhere", tmp_path / "new", store_url=str(tmp_path / "store"))
    with pytest.raises(ReproduceError, match=r"is no run: it has no config\.yaml"):
        reproduce(tmp_path, tmp_path / "new")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(RunConfig.from_flat(hf_checkpoint="gone", prompt_data=["p"]).to_yaml())
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ReproduceError, match="began from gone, which is not there any more"):
        reproduce(run, tmp_path / "new")
    with pytest.raises(ReproduceError, match="is not empty"):
        reproduce(run, run)
