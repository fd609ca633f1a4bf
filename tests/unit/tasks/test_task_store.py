"""What tasks publish: an attempt that was ended before Flyte knew of its results is not repeated in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.store import beside_artifacts, open_store, publish, published_before, work_directory


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_ARTIFACTS", str(tmp_path / "store"))
    monkeypatch.setenv("RELAX_WORK", str(tmp_path / "work"))


def attempt(text: str, **inputs: object) -> str:
    with work_directory("score", **inputs) as work:
        (work / "result.json").write_text(text)
        return publish(work, kind="evaluation", name="scores", work=work).ref


def test_a_second_attempt_at_the_same_work_gets_what_the_first_published() -> None:
    assert attempt("took 3 s", seed=1) == "scores@v1"
    assert attempt("took 4 s", seed=1) == "scores@v1"
    assert (open_store().fetch("scores@v1") / "result.json").read_text() == "took 3 s"
    assert attempt("took 3 s and more", seed=2) == "scores@v2"
    assert attempt("took 5 s", seed=1) == "scores@v1"


def test_nothing_was_published_before_the_first_time(tmp_path: Path) -> None:
    assert published_before("scores", tmp_path / "score-1") is None


def test_only_a_bucket_has_a_place_beside_the_artifacts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert beside_artifacts("train-1/checkpoints") is None
    monkeypatch.setenv("RELAX_ARTIFACTS", (tmp_path / "store").as_uri())
    assert beside_artifacts("train-1/checkpoints") is None
    monkeypatch.setenv("RELAX_ARTIFACTS", "s3://bucket/team/")
    assert beside_artifacts("train-1/checkpoints") == "s3://bucket/team/work/train-1/checkpoints"
