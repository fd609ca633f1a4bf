"""What is shown of a training: in its Deck, and as Markdown in its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_engine.observe.plots import run_plots, write_markdown
from tasks import html

if TYPE_CHECKING:
    from relax_engine.config import RunConfig
    from relax_engine.core.result import RunResult

_GROUPS_SHOWN = 5
_MOST_SAMPLES = 1000
_SHOWN = ("prompt", "response", "label", "reward", "advantage", "response_length")


def deck(result: RunResult, config: RunConfig) -> list[str]:
    """Parts of an HTML page: figures, plots, where the time went, and samples."""
    run_dir = Path(result.run_dir)
    lags = html.table(("lag in weight versions", "samples trained"), result.staleness_histogram.items())
    return [
        html.figures(_figures(result, config)),
        *(html.figure(title, picture) for title, picture in run_plots(run_dir).values()),
        html.section("Staleness", lags),
        html.section("Where the time went", html.table(("phase", "seconds"), result.phase_seconds.items())),
        html.section("Last step", html.table(("metric", "value"), sorted(result.metrics.items()))),
        *_samples(run_dir),
    ]


def markdown(result: RunResult, config: RunConfig, directory: Path) -> str:
    """The same figures and plots as Markdown; its pictures are written into `directory`."""
    rows = [f"| {name} | {value} |" for name, value in _figures(result, config).items()]
    head = [f"# {config.flat.experiment_name}", "", "| figure | value |", "|---|---|", *rows, "", ""]
    return "\n".join(head) + write_markdown(directory, run_plots(Path(result.run_dir)))


def _figures(result: RunResult, config: RunConfig) -> dict[str, Any]:
    return {
        "mode": config.mode,
        "steps": result.steps,
        "steps of this attempt": result.new_steps,
        "seconds of this attempt": round(result.wall_seconds, 1),
        "reward of the last step": result.reward_curve[-1],
        "largest log-prob difference between engine and trainer": result.logprob_max_abs_diff,
    }


def _samples(run_dir: Path) -> list[str]:
    """Two samples of each of the last step's first groups; none where the run records none."""
    from relax_engine.observe.rollouts.query import Rollouts

    if not (run_dir / "rollouts").is_dir():
        return []
    with Rollouts(run_dir) as rollouts:
        step = rollouts.last_step()
        if step is None:
            return []
        columns = ("group_index", *_SHOWN)
        found = rollouts.find([f"step={step}"], sort="sample_index", columns=columns, limit=_MOST_SAMPLES)
    groups: dict[int, list[dict[str, Any]]] = {}
    for sample in found:
        groups.setdefault(sample["group_index"], []).append(sample)
    chosen = [sample for group in list(groups.values())[:_GROUPS_SHOWN] for sample in group[:2]]
    rows = [[_asked(sample["prompt"]), *(sample[name] for name in _SHOWN[1:])] for sample in chosen]
    return [html.section(f"Samples of step {step}", html.table(_SHOWN, rows))]


def _asked(prompt: str) -> str:
    """The last message of a conversation, or the text."""
    try:
        return str(json.loads(prompt)[-1]["content"])
    except (ValueError, LookupError, TypeError):
        return prompt
