"""Publication: the report of the whole pipeline, and the `production` alias if the model has earned it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flytekit import task

from relax_engine.utils.svg import line_chart
from tasks import decks, html
from tasks.evaluate import SCORES
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, SHORT, SMALL
from tasks.significance import compare
from tasks.store import fetch, open_store, published_before, work_directory
from tasks.store import publish as publish_artifact
from tasks.types import ArtifactRef, Evaluation, Publication, TrainingOutcome

if TYPE_CHECKING:
    from relax_engine.lineage import Artifact

PRODUCTION = "production"


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def publish(
    model: ArtifactRef,
    before: Evaluation,
    after: Evaluation,
    outcome: TrainingOutcome,
    datasets: list[ArtifactRef],
    margin: float,
    pipeline: str,
) -> Publication:
    """Write the report as the artifact `<pipeline>-report`, and promote `model` if it is better than what is there.

    Better means: by more than `margin` on the same prompts than the production model, or, for the first one, than the
    model before training, with the lower bound of a paired bootstrap (`significance.compare`) of the sampled scores.
    """
    inputs = {"model": model, "before": before, "after": after, "outcome": outcome, "margin": margin}
    with executed("publish"), work_directory("publish", **inputs) as work:
        name = f"{pipeline}-report"
        earlier = published_before(name, work)
        if earlier is not None:  # its decision stands
            facts = json.loads((fetch(earlier) / "report.json").read_text())
            decks.show(f"Report of {pipeline}", *_report(facts), html.lineage(earlier, [model]))
            return Publication(model, earlier, facts["promoted"], facts["reason"])
        promoted, reason = _promote(model, before, after, margin)
        result = json.loads((fetch(outcome.run) / "result.json").read_text())
        parents = [model, before.artifact, after.artifact, outcome.run]
        facts = _facts(result, before, after, [*datasets, outcome.checkpoint, *parents])
        facts |= {"promoted": promoted, "reason": reason}
        document = decks.show(f"Report of {pipeline}", *_report(facts), html.lineage(model, parents))
        (work / "report.html").write_text(document, encoding="utf-8")
        (work / "report.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
        metrics = {"accuracy_before": before.sampled, "accuracy_after": after.sampled}
        report = publish_artifact(work, kind="evaluation", name=name, parents=parents, metrics=metrics, work=work)
        return Publication(model, report, promoted, reason)


def _promote(model: ArtifactRef, before: Evaluation, after: Evaluation, margin: float) -> tuple[bool, str]:
    """Move the alias if the model is better than the incumbent; returns whether it now holds it, and why."""
    store = open_store()
    family = model.ref.partition("@")[0]
    number = store.aliases(family).get(PRODUCTION)
    if number is None:
        incumbent, rival, known = None, "the model before training", store.resolve(before.artifact.ref)
    else:
        incumbent = store.resolve(f"{family}@v{number}")
        if incumbent.digest == model.digest:
            return True, f"{incumbent.ref} is in production already"
        found = _evaluation_of(incumbent, after.dataset)
        if found is None:
            return False, f"{incumbent.ref}, in production, has no scores of {after.dataset.ref}: not compared"
        rival, known = f"{incumbent.ref}, the model in production", found
    result = compare(_scores(after.artifact.ref), _scores(known.ref))
    bar = known.metrics["accuracy"]
    comparison = f"accuracy {after.sampled:.3f}, {rival} {bar:.3f}, difference {result}, margin {margin:g}"
    if result.low <= margin:
        return False, f"not surely better by more than the margin: {comparison}"
    store.tag(family, PRODUCTION, model.ref, expected=incumbent.ref if incumbent else None)
    return True, comparison


def _evaluation_of(model: Artifact, dataset: ArtifactRef) -> Artifact | None:
    """The newest evaluation of `model` on `dataset` that has the scores of each prompt; None if there is none."""
    found = [
        artifact
        for artifact in open_store().descendants(model)
        if artifact.kind == "evaluation"
        and any(entry.path == SCORES for entry in artifact.files)
        and {model.digest, dataset.digest} <= {parent.digest for parent in artifact.parents}
    ]
    return max(found, key=lambda artifact: artifact.created_at) if found else None


def _scores(evaluation: str) -> list[float]:
    scores: list[float] = json.loads((open_store().fetch(evaluation) / SCORES).read_text())
    return scores


def _facts(
    result: dict[str, Any], before: Evaluation, after: Evaluation, artifacts: list[ArtifactRef]
) -> dict[str, Any]:
    return {
        "accuracy_before": before.sampled,
        "accuracy_after": after.sampled,
        "greedy_accuracy_before": before.greedy,
        "greedy_accuracy_after": after.greedy,
        "mode": result["mode"],
        "reward_curve": result["reward_curve"],
        "staleness_histogram": result["staleness_histogram"],
        "logprob_max_abs_diff": result["logprob_max_abs_diff"],
        "phase_seconds": result["phase_seconds"],
        "training_seconds": result["wall_seconds"],
        "artifacts": {artifact.ref: {"kind": artifact.kind, "digest": artifact.digest} for artifact in artifacts},
    }


def _report(facts: dict[str, Any]) -> list[str]:
    accuracy = html.table(
        ("accuracy", "before", "after"),
        [
            ("sampled", facts["accuracy_before"], facts["accuracy_after"]),
            ("greedy", facts["greedy_accuracy_before"], facts["greedy_accuracy_after"]),
        ],
    )
    title = "mean reward by step"
    verdict = html.text(("promoted: " if facts["promoted"] else "not promoted: ") + facts["reason"])
    return [accuracy, verdict, html.figure(title, line_chart(title, {"reward": facts["reward_curve"]}))]
