"""One table of several trainings from the same start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flytekit import task

from relax_engine.observe.metrics import read_metrics
from relax_engine.observe.plots import compared, plot_named, write_markdown
from tasks import decks, html, markdown
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, SHORT, SMALL
from tasks.store import fetch, publish, work_directory
from tasks.types import ArtifactRef, Evaluation, TrainingOutcome, TrainingOverrides

_RESULTS = ("variant", "mode", "sampled before", "sampled after", "greedy after", "reward, last tenth", "mean lag")
_MISMATCH = {
    "log-prob gap": "train/train_rollout_logprob_abs_diff",
    "KL": "mismatch/k3_kl",
    "beyond 2": "mismatch/beyond_2",
    "choices changed": "train/routing_replay/changed",
}
"""How far trainer and engine are apart, over the steps of a run, and the metric that says so; see `docs/metrics.md`."""
_CURVES = "curves.json"
"""In a comparison's artifact: of each variant its label and the mean reward of each step."""
_PLOTS = ("reward", "length", "throughput")
"""Charts with a line for each variant."""
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

    `results.json`, `mismatch.json` (how far trainer and engine were apart, the mean of all steps) and `curves.json`
    (rewards by step) hold nothing that differs between two runs of the same deterministic configuration; `times.json`
    has what a clock said. `report.html` and `report.md` show all.
    """
    with executed("compare_runs"), work_directory("compare", outcomes=outcomes, evaluations=evaluations) as work:
        results, mismatch, times, curves, runs = [], [], [], [], {}
        for variant, outcome, after in zip(variants, outcomes, evaluations, strict=True):
            record = fetch(outcome.run)
            runs[variant.label] = record
            run = json.loads((record / "result.json").read_text())
            curve = run["reward_curve"]
            lags = {int(lag): count for lag, count in run["staleness_histogram"].items()}
            trained = sum(lags.values())
            last = curve[-max(1, len(curve) // 10) :]
            mean_lag = sum(lag * count for lag, count in lags.items()) / max(1, trained)
            learned = (before.sampled, after.sampled, after.greedy, sum(last) / len(last), mean_lag)
            results.append(dict(zip(_RESULTS, (variant.label, run["mode"], *learned), strict=True)))
            mismatch.append({"variant": variant.label} | _mismatch(record))
            seconds = run["wall_seconds"]
            spent = (seconds, trained / seconds, sum(run["phase_seconds"].values()))
            times.append(dict(zip(_TIMES, (variant.label, *spent), strict=True)))
            curves.append((variant.label, curve))
        parents = [outcome.run for outcome in outcomes] + [evaluation.artifact for evaluation in evaluations]
        shown_rows = (results, mismatch, times)
        tables = [html.table(list(rows[0]), [list(row.values()) for row in rows]) for rows in shown_rows]
        pictures = {name: (plot_named(name).title, compared(runs, plot_named(name))) for name in _PLOTS}
        figures = [html.figure(*picture) for picture in pictures.values()]
        document = decks.show(title, *tables, *figures, html.lineage(None, parents))
        (work / "report.html").write_text(document, encoding="utf-8")
        shown = write_markdown(work, pictures)
        text = f"# {title}\n\n" + "".join(f"{markdown.table(rows)}\n" for rows in shown_rows) + shown
        (work / "report.md").write_text(text, encoding="utf-8")
        (work / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        (work / "mismatch.json").write_text(json.dumps(mismatch, indent=1), encoding="utf-8")
        (work / _CURVES).write_text(json.dumps(curves), encoding="utf-8")
        (work / "times.json").write_text(json.dumps(times, indent=1), encoding="utf-8")
        metrics = {"best": max(evaluation.sampled for evaluation in evaluations)}
        return publish(work, kind="evaluation", name=f"{pipeline}-comparison", parents=parents, metrics=metrics)


def _mismatch(record: Path) -> dict[str, Any]:
    """The means over the steps of a run; None for what was not measured."""
    steps = read_metrics(record / "metrics.jsonl")
    found = {name: [step[metric] for step in steps if metric in step] for name, metric in _MISMATCH.items()}
    return {name: sum(values) / len(values) if values else None for name, values in found.items()}
