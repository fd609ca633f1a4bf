"""Evaluation of one model on held-out prompts, sampled and greedy."""

from __future__ import annotations

import json

from flytekit import task

from tasks import decks, html
from tasks.configs import evaluation_config
from tasks.content import ConfigFile, config_key
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, LONG, MEDIUM
from tasks.store import fetch, open_store, publish, published_before, work_directory
from tasks.types import ArtifactRef, Evaluation

SCORES = "prompt_scores.json"
"""In an evaluation's artifact: the mean sampled reward of each prompt, in the order of the dataset."""


@task(cache=CACHE, requests=MEDIUM, timeout=LONG, **EVERY_TASK)
def evaluate(
    model: ArtifactRef, dataset: ArtifactRef, config: ConfigFile, seed: int, pipeline: str, stage: str
) -> Evaluation:
    """Score `model` on `dataset` with the reward of `config`; publishes `<pipeline>-evaluation-<stage>`.

    An attempt after a kill returns what was published already.

    Raises:
        RelaxError: the engine, a prompt or a reward failed.
    """
    inputs = {"model": model, "dataset": dataset, "config": config_key(config), "stage": stage}
    with executed("evaluate"), work_directory("evaluate", **inputs, seed=seed) as work:
        name, title = f"{pipeline}-evaluation-{stage}", f"Evaluation of {model.ref}"
        parents = [model, dataset]
        earlier = published_before(name, work)
        if earlier is not None:
            known = open_store().resolve(earlier.ref).metrics
            decks.show(title, html.figures(known), html.lineage(earlier, parents))
            return Evaluation(earlier, model, dataset, known["accuracy"], known["greedy_accuracy"])
        from relax_engine import evaluate as score

        run = evaluation_config(config, model=fetch(model), dataset=fetch(dataset), name="heldout", seed=seed)
        (result,) = score(run)
        figures = result.to_dict()
        scores = figures.pop("prompt_scores")
        document = decks.show(title, html.figures(figures), html.lineage(None, parents))
        (work / "report.html").write_text(document, encoding="utf-8")
        (work / "result.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")
        (work / SCORES).write_text(json.dumps(scores), encoding="utf-8")
        artifact = publish(
            work,
            kind="evaluation",
            name=name,
            parents=parents,
            metrics={"accuracy": result.accuracy, "greedy_accuracy": result.greedy_accuracy},
            config_digest=run.digest(),
            work=work,
        )
        return Evaluation(artifact, model, dataset, result.accuracy, result.greedy_accuracy)
