"""One table of several trainings from the same start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from flytekit import task

from tasks import decks, html
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, SHORT, SMALL
from tasks.store import fetch, publish, work_directory
from tasks.types import ArtifactRef, Evaluation, TrainingOutcome, TrainingOverrides

_RESULTS = ("variant", "mode", "sampled before", "sampled after", "greedy after", "reward, last tenth", "mean lag")
CURVES = "curves.json"
"""In a comparison's artifact: of each variant its label and the mean reward of each step."""
_TIMES = ("variant", "seconds", "samples/s", "phases in sum")


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def compare_runs(
    title: str,
    variants: list[TrainingOverrides],
    outcomes: list[TrainingOutcome],
    before: Evaluation,
    evaluations: list[Evaluation],
    pipeline: str,
) -> ArtifactRef:
    """Publish `<pipeline>-comparison`: what each variant learned, and, apart from that, how long it took.

    `results.json` and `curves.json` (rewards by step) hold nothing that differs between two runs of the same
    deterministic configuration; `times.json` has what a clock said. `report.html` and `report.md` show all.
    """
    with executed("compare_runs"), work_directory("compare", outcomes=outcomes, evaluations=evaluations) as work:
        results, times, curves = [], [], []
        for variant, outcome, after in zip(variants, outcomes, evaluations, strict=True):
            run = json.loads((fetch(outcome.run) / "result.json").read_text())
            curve = run["reward_curve"]
            lags = {int(lag): count for lag, count in run["staleness_histogram"].items()}
            trained = sum(lags.values())
            last = curve[-max(1, len(curve) // 10) :]
            mean_lag = sum(lag * count for lag, count in lags.items()) / max(1, trained)
            learned = (before.sampled, after.sampled, after.greedy, sum(last) / len(last), mean_lag)
            results.append(dict(zip(_RESULTS, (variant.label, run["mode"], *learned), strict=True)))
            seconds = run["wall_seconds"]
            spent = (seconds, trained / seconds, sum(run["phase_seconds"].values()))
            times.append(dict(zip(_TIMES, (variant.label, *spent), strict=True)))
            curves.append((variant.label, curve))
        parents = [outcome.run for outcome in outcomes] + [evaluation.artifact for evaluation in evaluations]
        tables = [html.table(list(rows[0]), [list(row.values()) for row in rows]) for rows in (results, times)]
        document = decks.show(title, *tables, *reward_charts(curves), html.lineage(None, parents))
        (work / "report.html").write_text(document, encoding="utf-8")
        (work / "report.md").write_text(f"# {title}\n\n{_markdown(results)}\n{_markdown(times)}", encoding="utf-8")
        (work / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        (work / CURVES).write_text(json.dumps(curves), encoding="utf-8")
        (work / "times.json").write_text(json.dumps(times, indent=1), encoding="utf-8")
        metrics = {"best": max(evaluation.sampled for evaluation in evaluations)}
        return publish(work, kind="evaluation", name=f"{pipeline}-comparison", parents=parents, metrics=metrics)


def reward_charts(curves: Sequence[tuple[str, Sequence[float]]]) -> list[str]:
    """One chart for each variant."""
    return [html.line_chart(f"mean reward by step: {label}", curve) for label, curve in curves]


def _markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += [
        "| " + " | ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()) + " |" for row in rows
    ]
    return "\n".join(lines) + "\n"
