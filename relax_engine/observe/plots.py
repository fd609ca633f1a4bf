"""A run in pictures: the same ones in Flyte Decks and in Markdown reports.

What lives here: which metrics a picture shows. What does not: drawing (`relax_engine.utils.svg`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from relax_engine.observe.series import RunMetrics
from relax_engine.utils.svg import line_chart


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart over steps. `metrics` are shown under their names in it; those that a run does not have are left out."""

    name: str
    title: str
    metrics: Mapping[str, str]
    low: float | None = None


PLOTS = (
    Plot("reward", "mean reward by step", {"reward": "rollout/raw_reward"}),
    Plot("throughput", "tokens trained a second and device", {"tokens/s": "perf/tokens_per_gpu_per_sec"}, 0.0),
    Plot("time", "seconds of a step", {"step": "perf/step_time", "waiting for samples": "perf/wait_time"}, 0.0),
    Plot("length", "response length in tokens", {name: f"rollout/response_len/{name}" for name in ("mean", "max")}),
    Plot("loss", "loss by step", {"loss": "train/loss"}),
    Plot("lag", "lag in weight versions", {"mean": "rollout/staleness/avg", "max": "rollout/staleness/max"}),
)

_POINTS = 600


def run_plots(run_dir: Path) -> dict[str, tuple[str, str]]:
    """Title and SVG of every plot of which the run has metrics, by name, in the order of `PLOTS`."""
    wanted = [metric for plot in PLOTS for metric in plot.metrics.values()]
    found = RunMetrics(run_dir).query(wanted, points=_POINTS)
    pictures = {}
    for plot in PLOTS:
        series = {name: found[metric]["values"] for name, metric in plot.metrics.items() if metric in found}
        if series:
            steps = next(iter(found[metric]["steps"] for metric in plot.metrics.values() if metric in found))
            at = [float(step) for step in steps if step is not None]
            pictures[plot.name] = (plot.title, line_chart(plot.title, series, low=plot.low, positions=at))
    return pictures


def compared(curves: Mapping[str, Path], plot: Plot) -> str:
    """One metric of several runs in one chart: the first of the plot's, by the runs' labels."""
    metric = next(iter(plot.metrics.values()))
    found = {label: RunMetrics(run).query([metric], points=_POINTS) for label, run in curves.items()}
    series = {label: one[metric]["values"] for label, one in found.items() if metric in one}
    return line_chart(plot.title, series, low=plot.low)


def plot_named(name: str) -> Plot:
    """The plot of this name in `PLOTS`."""
    return next(plot for plot in PLOTS if plot.name == name)


def write_markdown(directory: Path, pictures: Mapping[str, tuple[str, str]]) -> str:
    """Write pictures (name to title and SVG) as files, and return Markdown that shows them, for a text beside them."""
    for name, (_, picture) in pictures.items():
        (directory / f"{name}.svg").write_text(picture, encoding="utf-8")
    return "\n".join(f"![{title}]({name}.svg)\n" for name, (title, _) in pictures.items())
