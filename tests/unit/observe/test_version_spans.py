"""Traces of a step and the group that held it, and the terminal's picture of a run."""

from pathlib import Path

import numpy as np
import pytest

from relax_engine.cli.top import curve, drawn
from relax_engine.observe.journal import Journal
from relax_engine.observe.rollouts.filters import QueryError
from relax_engine.observe.rollouts.parts import PartTable
from relax_engine.observe.rollouts.tables import samples_table
from relax_engine.observe.spans import chrome_trace, step_spans, straggler
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.types import Sample

# started, generated, scored, in the environment: of two samples for each of three groups
TIMES = [
    [(0.0, 1.0, 1.5, 0.0), (0.0, 1.0, 1.5, 0.0)],
    [(0.0, 1.2, 1.5, 0.0), (0.0, 1.1, 1.6, 0.0)],
    [(0.0, 1.0, 1.5, 0.0), (0.0, 9.0, 9.5, 7.5)],
]


def recorded(run: Path, times: list[list[tuple[float, float, float, float]]]) -> None:
    samples = [
        Sample(
            group_index=group,
            index=2 * group + i,
            tokens=[1, 2],
            response_length=1,
            timings={"started": 100 + started, "generated": 100 + generated, "scored": 100 + scored},
            non_generation_time=environment,
        )
        for group, members in enumerate(times)
        for i, (started, generated, scored, environment) in enumerate(members)
    ]
    count = len(samples)
    ones = np.ones(count, np.int32)
    batch = ColumnBatch(
        {
            "tokens": Column.ragged([s.tokens for s in samples], np.int32),
            "response_lengths": Column.fixed(ones),
            "loss_masks": Column.ragged([[1]] * count, np.uint8),
            "rollout_log_probs": Column.ragged([[-1.0]] * count, np.float32),
            **{name: Column.fixed(ones.astype(np.float32)) for name in ("raw_reward", "rewards")},
            "group_index": Column.fixed([s.group_index for s in samples], np.int64),
            "sample_indices": Column.fixed([s.index for s in samples], np.int64),
            **{name: Column.fixed(ones) for name in ("first_version", "last_version")},
        }
    )
    PartTable(run / "rollouts" / "samples").append(samples_table(4, samples, batch, placed=110.0))
    phases = [("train", 4, 110.0, 112.0), ("train", 5, 113.0, 114.0)]
    Journal(run).event({"kind": "phases", "role": "actor", "phases": phases})


def test_a_trace_holds_phases_and_groups_in_microseconds(tmp_path: Path) -> None:
    recorded(tmp_path, TIMES)
    spans = step_spans(tmp_path, 4)
    assert len(spans) == 1 + 3 * 3
    trace = chrome_trace(spans)
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    (train,) = (event for event in complete if event["name"] == "train")
    assert (train["ts"], train["dur"]) == (10_000_000, 2_000_000)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names == {"train", "group 0", "group 1", "group 2"}
    slow = next(event for event in complete if event["args"].get("samples") == [4, 5] and event["name"] == "generate")
    assert slow["dur"] == 9_000_000


def test_the_straggler_and_what_held_it(tmp_path: Path) -> None:
    recorded(tmp_path, TIMES)
    found = straggler(tmp_path, 4)
    assert (found.group_index, found.slowest_sample, found.stage) == (2, 5, "environment")
    assert found.behind == pytest.approx(7.9)
    assert found.median_behind == pytest.approx(7.9)


@pytest.mark.parametrize(("changed", "stage"), [((0.0, 8.0, 8.5, 0.0), "generate"), ((0.0, 1.0, 8.0, 0.0), "reward")])
def test_the_stage_that_held_the_step(tmp_path: Path, changed: tuple[float, float, float, float], stage: str) -> None:
    recorded(tmp_path, [*TIMES[:2], [changed, changed]])
    assert straggler(tmp_path, 4).stage == stage


def test_steps_that_were_not_recorded_are_an_error(tmp_path: Path) -> None:
    recorded(tmp_path, TIMES[:1])
    with pytest.raises(QueryError, match="neither phases nor samples of step 9"):
        step_spans(tmp_path, 9)
    with pytest.raises(QueryError, match="1 group"):
        straggler(tmp_path, 4)


def test_a_curve_spans_its_values() -> None:
    assert curve([0.0, None, 0.5, 1.0]) == "▁▅█"
    assert curve([2.0, 2.0]) == "▁▁"
    assert curve([]) == ""


def test_the_terminal_shows_markup_as_text() -> None:
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as capture:
        console.print(
            drawn(
                {"name": "r", "status": "running", "step": 4, "num_steps": 9},
                {"rollout/raw_reward": {"values": [0.0, 0.25]}},
                {"engines": [{"url": "http://h:1", "version": 3, "outstanding": 2, "out_of_service": "[bold]dead[/]"}]},
                [{"time": 0.0, "kind": "engine_left", "role": "rollout", "engine": "[red]x[/red]"}],
            )
        )
    text = capture.get()
    assert "step 5 of 9" in text
    assert "[bold]dead[/]" in text
    assert "[red]x[/red]" in text
    assert "▁█" in text
