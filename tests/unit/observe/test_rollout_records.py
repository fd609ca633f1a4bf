"""Recorded samples: what is written, what is found again, and what a slow or full disk costs."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from relax_engine.observe.rollouts.filters import QueryError
from relax_engine.observe.rollouts.media import MediaStore
from relax_engine.observe.rollouts.parts import PartTable, read_parts
from relax_engine.observe.rollouts.query import Rollouts
from relax_engine.observe.rollouts.recorder import Recorder
from relax_engine.observe.rollouts.tables import samples_table, training_table
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.types import Sample, SampleStatus, WeightVersionSpan

NOTHING = MediaStore(Path("nowhere"), 0)


def made(step: int, count: int = 4) -> tuple[list[Sample], ColumnBatch]:
    """Samples of two prompts; sample i has i + 1 response tokens, and reward i / 10."""
    samples = [
        Sample(
            group_index=step * 2 + i // 2,
            index=step * count + i,
            prompt=[{"role": "user", "content": f"say {i}"}],
            tokens=[7, 8, *range(i + 1)],
            response=f"answer <b>{i}</b>",
            response_length=i + 1,
            label=str(i),
            reward={"score": i / 10, "format": i % 2, "note": "text"},
            loss_mask=[1] * i + [0],
            rollout_log_probs=[-0.5 * (j + 1) for j in range(i + 1)],
            weight_versions=[WeightVersionSpan(step, 0, i + 1)],
            status=SampleStatus.TRUNCATED if i == 3 else SampleStatus.COMPLETED,
            timings={"started": 100.0, "generated": 101.0 + i, "scored": 110.0},
            multimodal_inputs={"images": ["cat.png"]} if i == 0 else None,
        )
        for i in range(count)
    ]
    batch = ColumnBatch(
        {
            "tokens": Column.ragged([s.tokens for s in samples], np.int32),
            "response_lengths": Column.fixed([s.response_length for s in samples], np.int32),
            "loss_masks": Column.ragged([s.loss_mask or [] for s in samples], np.uint8),
            "rollout_log_probs": Column.ragged([s.rollout_log_probs or [] for s in samples], np.float32),
            "raw_reward": Column.fixed(np.array([i / 10 for i in range(count)], np.float32)),
            "rewards": Column.fixed(np.linspace(-1, 1, count).astype(np.float32)),
            "group_index": Column.fixed([s.group_index for s in samples], np.int64),
            "sample_indices": Column.fixed([s.index for s in samples], np.int64),
            "first_version": Column.fixed([step] * count, np.int32),
            "last_version": Column.fixed([step] * count, np.int32),
        }
    )
    return samples, batch


def record(run: Path, steps: int) -> None:
    samples_parts, training_parts = PartTable(run / "rollouts/samples"), PartTable(run / "rollouts/training")
    for step in range(steps):
        samples, batch = made(step)
        samples_parts.append(samples_table(step, samples, batch, placed=120.0, media=NOTHING))
        tokens = batch["rollout_log_probs"]
        trained = batch.with_columns(
            advantages=Column(np.arange(len(tokens.values), dtype=np.float32), tokens.offsets),
            log_probs=Column(tokens.values + 0.25, tokens.offsets),
            ref_log_probs=Column(tokens.values + 1.0, tokens.offsets),
        )
        training_parts.append(training_table(step, step + 1, trained, began=125.0))


def test_a_sample_comes_back_whole(tmp_path: Path) -> None:
    record(tmp_path, 1)
    with Rollouts(tmp_path) as rollouts:
        sample = rollouts.sample(0, 2)
    assert sample["tokens"] == [7, 8, 0, 1, 2]
    assert sample["loss_mask"] == [1, 1, 0]
    assert sample["log_probs"] == [-0.5, -1.0, -1.5]
    assert sample["advantages"] == [3.0, 4.0, 5.0]
    assert sample["advantage"] == pytest.approx(3.5)  # of the two tokens in the loss
    assert sample["kl"] == pytest.approx(-0.75)
    assert sample["log_prob_gap"] == pytest.approx(0.25)
    assert (sample["age"], sample["prompt_length"], sample["trained_length"]) == (1, 2, 2)
    assert dict(sample["reward_parts"]) == {"score": 0.2, "format": 0.0}
    assert sample["spans"] == [[0, 0, 3]]
    assert sample["response"] == "answer <b>2</b>"


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (["reward=0.1"], [1]),
        (["reward>=0.2"], [2, 3]),
        (["status=truncated"], [3]),
        (["reward.format=1"], [1, 3]),
        (["response~ANSWER <B>0"], [0]),
        (["response!~b>0", "advantage<2"], [1]),
        (["media~cat"], [0]),
        (["generation_seconds>2.5"], [2, 3]),
        (["sample_index=1..2"], [1, 2]),
        (["label=0' OR 1=1 --"], []),
    ],
)
def test_filters(tmp_path: Path, where: list[str], found: list[int]) -> None:
    record(tmp_path, 1)
    with Rollouts(tmp_path) as rollouts:
        rows = rollouts.find(where, sort="sample_index", columns=["sample_index"])
        assert [row["sample_index"] for row in rows] == found
        assert rollouts.count(where) == len(found)


@pytest.mark.parametrize("where", ["rewrd>1", "reward>high", "status>x", "reward~1", "1=1", "x'; DROP TABLE s"])
def test_what_is_no_filter_is_refused(tmp_path: Path, where: str) -> None:
    record(tmp_path, 1)
    with Rollouts(tmp_path) as rollouts, pytest.raises(QueryError, match=r"filter|field|number|compared"):
        rollouts.find([where])


def test_sorting_and_figures_by_step(tmp_path: Path) -> None:
    record(tmp_path, 3)
    with Rollouts(tmp_path) as rollouts:
        rows = rollouts.find(sort="log_prob_gap:desc", columns=["sample_index", "step"], limit=2)
        assert [(row["step"], row["sample_index"]) for row in rows] == [(0, 0), (0, 1)]  # all equal: by step
        steps = rollouts.steps()
    assert [row["step"] for row in steps] == [0, 1, 2]
    assert steps[0]["reward"] == pytest.approx(0.15)
    assert steps[0]["truncated"] == 0.25
    assert steps[0]["groups"] == 2


def test_a_run_of_an_earlier_version_is_read_and_goes_on(tmp_path: Path) -> None:
    """Columns that came since are empty in its rows, before and after new rows are merged with them."""
    later = {"samples": ["engine", "admitted"], "training": ["trained"]}
    for name, came_since in later.items():
        parts = PartTable(tmp_path / "rollouts" / name)
        samples, batch = made(0)
        table = (
            samples_table(0, samples, batch, placed=1.0, media=NOTHING)
            if name == "samples"
            else training_table(0, 1, batch.with_columns(advantages=batch["rollout_log_probs"]), began=2.0)
        )
        parts.append(table.drop_columns(came_since))
    with Rollouts(tmp_path) as rollouts:
        assert [row["engine"] for row in rollouts.find(columns=["engine"])] == [None] * 4
        assert rollouts.count(["response~answer"]) == 4
        assert rollouts.sample(0, 2)["trained"] is None
    again = PartTable(tmp_path / "rollouts/samples")
    for step in range(1, 20):
        again.append(samples_table(step, *made(step), placed=1.0, media=NOTHING))
    with Rollouts(tmp_path) as rollouts:
        assert rollouts.count() == 80
        assert rollouts.sample(0, 2)["engine"] is None


def test_parts_are_merged_and_rows_stay(tmp_path: Path) -> None:
    """A hundred parts of four rows are a few files, in order, each row once; so they are after a rewind."""
    record(tmp_path, 100)
    parts = read_parts(tmp_path / "rollouts/samples")
    assert sum(part.rows for part in parts) == 400
    assert len(parts) <= 2 * 7 + 7
    assert [part.first_step for part in parts] == sorted(part.first_step for part in parts)
    again = PartTable(tmp_path / "rollouts/samples")
    again.rewind(37)
    with Rollouts(tmp_path) as rollouts:
        assert rollouts.last_step() == 36
        assert rollouts.count() == 37 * 4
        assert rollouts.count(["step=36"]) == 4
    again.append(samples_table(37, *made(37), placed=1.0, media=NOTHING))
    with Rollouts(tmp_path) as rollouts:
        assert rollouts.count(["step>=36"]) == 8
    files = {path.name for path in (tmp_path / "rollouts/samples").glob("*.parquet")}
    assert {part.file for part in again.parts} <= files


def test_a_run_without_samples_yet_answers(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    with Rollouts(tmp_path) as rollouts:
        assert rollouts.find(["advantage>0", "reward.format=1"]) == []
        assert rollouts.steps() == []
        with pytest.raises(QueryError, match="no sample 3 of step 1"):
            rollouts.sample(1, 3)
    with pytest.raises(QueryError, match="--record-rollouts"):
        Rollouts(tmp_path / "elsewhere")


def test_offers_never_wait_and_drops_are_counted(tmp_path: Path) -> None:
    """A disk that hangs takes no time of who offers; what is beyond the bound is counted, the rest is written."""
    hanging = threading.Event()

    def slow() -> pa.Table:
        assert hanging.wait(30)
        return samples_table(0, *made(0), placed=1.0, media=NOTHING)

    recorder = Recorder(tmp_path / "rollouts" / "samples")
    started = time.monotonic()
    recorder.offer(4, slow)
    for step in range(1, 4):
        recorder.offer(30_000, lambda step=step: samples_table(step, *made(step), placed=1.0, media=NOTHING))  # type: ignore[misc]
    assert time.monotonic() - started < 1.0
    assert recorder.dropped == 30_000
    hanging.set()
    recorder.close()
    with Rollouts(tmp_path) as rollouts:
        assert [row["step"] for row in rollouts.steps()] == [0, 1, 2]


def test_a_disk_that_fails_fails_nothing_else(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "samples").write_text("a file where the directory should be")
    recorder = Recorder(tmp_path / "samples")
    recorder.offer(4, lambda: samples_table(0, *made(0), placed=1.0, media=NOTHING))
    recorder.close()
    assert recorder.dropped == 4
    assert "not recorded" in caplog.text
