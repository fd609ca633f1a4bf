"""Traces of a step and the group that held it, and the terminal's picture of a run."""

from pathlib import Path

import pytest
from step_records import TIMES, recorded

from relax_engine.cli.top import curve, drawn
from relax_engine.observe.rollouts.filters import QueryError
from relax_engine.observe.spans import chrome_trace, step_spans
from relax_engine.observe.stragglers import straggler


def test_a_trace_holds_phases_and_groups_in_microseconds(tmp_path: Path) -> None:
    recorded(tmp_path, TIMES)
    spans = step_spans(tmp_path, 4)
    assert len(spans) == 3 + 3 * 5  # phases of the step, and five stages of each group
    trace = chrome_trace(spans)
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    (train,) = (event for event in complete if event["name"] == "train")
    assert (train["ts"], train["dur"]) == (11_000_000, 1_500_000)  # from the admission on
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names == {"train", "optimizer", "group 0", "group 1", "group 2"}
    slow = next(event for event in complete if event["args"].get("samples") == [4, 5] and event["name"] == "generate")
    assert slow["dur"] == 9_000_000


def test_the_straggler_and_what_held_it(tmp_path: Path) -> None:
    recorded(tmp_path, TIMES)
    found = straggler(tmp_path, 4)
    assert (found.group_index, found.slowest_sample, found.stage) == (2, 5, "environment")
    assert (found.holder, found.lost) == ("envs.maze", pytest.approx(7.5))
    assert found.behind == pytest.approx(7.9)
    assert found.median_behind == pytest.approx(7.9)


@pytest.mark.parametrize(
    ("changed", "stage", "holder"),
    [((0.0, 8.0, 8.5, 0.0), "generate", "http://engine-2:1"), ((0.0, 1.0, 8.0, 0.0), "reward", "dapo")],
)
def test_the_stage_that_held_the_step(
    tmp_path: Path, changed: tuple[float, float, float, float], stage: str, holder: str
) -> None:
    """The engine is the sample's own; the reward that the sample's metadata names wins over the run's."""
    recorded(tmp_path, [*TIMES[:2], [changed, changed]])
    found = straggler(tmp_path, 4)
    assert (found.stage, found.holder) == (stage, holder)
    assert f"it lost most in {'engine' if stage == 'generate' else stage} {holder}" in found.sentence()


def test_a_group_that_began_late_is_told_apart_from_slow_ones(tmp_path: Path) -> None:
    late = (6.0, 7.0, 7.5, 0.0)
    recorded(tmp_path, [*TIMES[:2], [late, late]])
    found = straggler(tmp_path, 4)
    assert (found.stage, found.holder, found.lost) == ("start", None, 6.0)
    assert "it lost most in waiting for its start: 6.000 s" in found.sentence()


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
