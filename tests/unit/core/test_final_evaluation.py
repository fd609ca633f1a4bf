"""Whether the weights at the end of a run that is at its end are still to be evaluated."""

import json
from pathlib import Path
from typing import Any

import pytest

from relax_engine.config import RunConfig
from relax_engine.core.train import lacks_evaluation


def config(**flags: Any) -> RunConfig:
    sets = {"a": ["a.jsonl"], "b": ["b.jsonl"]}
    return RunConfig.from_flat(
        **{"hf_checkpoint": "m", "prompt_data": ["p"], "eval_prompt_data": sets, "eval_interval": 2, **flags}
    )


def run(directory: Path, *evaluated: tuple[int, str], trained: bool = True) -> Path:
    if trained:
        (directory / "metrics.jsonl").write_text(json.dumps({"step": 5}) + "\n")
    lines = [json.dumps({"step": step, "dataset": name}) + "\n" for step, name in evaluated]
    (directory / "eval.jsonl").write_text("".join(lines))
    return directory


@pytest.mark.parametrize("evaluated", [(), ((6, "a"),), ((4, "a"), (4, "b"))])
def test_a_run_killed_before_its_last_evaluation_lacks_it(evaluated: Any, tmp_path: Path) -> None:
    assert lacks_evaluation(config(), run(tmp_path, *evaluated), 6)


def test_every_data_set_is_evaluated_once(tmp_path: Path) -> None:
    assert not lacks_evaluation(config(), run(tmp_path, (6, "a"), (6, "b")), 6)


def test_what_is_not_due_or_of_another_directory_is_not_missing(tmp_path: Path) -> None:
    assert not lacks_evaluation(config(), run(tmp_path), 5)
    assert not lacks_evaluation(config(eval_interval=None), tmp_path, 6)
    (tmp_path / "new").mkdir()
    assert not lacks_evaluation(config(), run(tmp_path / "new", trained=False), 6)


def test_a_function_of_ones_own_has_names_of_its_own(tmp_path: Path) -> None:
    own = config(eval_function_path="mine.evaluate")
    assert lacks_evaluation(own, run(tmp_path), 6)
    assert not lacks_evaluation(own, run(tmp_path, (6, "whatever")), 6)
