"""A run in pictures, for Decks and for Markdown."""

from pathlib import Path

from relax_engine.observe.metrics import MetricsLog
from relax_engine.observe.plots import compared, plot_named, run_plots, write_markdown


def a_run(directory: Path, slope: float) -> Path:
    log = MetricsLog(directory / "metrics.jsonl")
    for step in range(3):
        log.write(step, {"rollout/raw_reward": slope * step, "perf/step_time": 2.0, "perf/wait_time": 0.5})
    return directory


def test_a_run_is_shown_by_the_metrics_that_it_has(tmp_path: Path) -> None:
    pictures = {name: picture for name, (_, picture) in run_plots(a_run(tmp_path, 0.25)).items()}
    assert list(pictures) == ["reward", "time"]
    assert "aria-label='mean reward by step: reward 0.5'" in pictures["reward"]
    assert "seconds of a step: step 2, waiting for samples 0.5" in pictures["time"]


def test_runs_are_compared_in_one_picture(tmp_path: Path) -> None:
    runs = {name: a_run(tmp_path / name, slope) for name, slope in (("sync", 0.25), ("async", 0.5))}
    assert "mean reward by step: sync 0.5, async 1'" in compared(runs, plot_named("reward"))
    assert "no values" in compared(runs, plot_named("throughput"))


def test_markdown_shows_pictures_that_lie_beside_it(tmp_path: Path) -> None:
    assert write_markdown(tmp_path, {"reward": ("mean reward", "<svg/>")}) == "![mean reward](reward.svg)\n"
    assert (tmp_path / "reward.svg").read_text() == "<svg/>"
