"""Scheduled retraining: is there anything new, and what became of it.

What lives here: the decisions before and after. What does not: the training between them (`workflows/retraining.py`).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import fsspec
from flytekit import task

from tasks import decks, html
from tasks.content import config_key, source_digest
from tasks.executions import executed
from tasks.intake import take_file, take_model
from tasks.publish import PRODUCTION
from tasks.settings import EVERY_TASK, SHORT, SMALL
from tasks.store import open_store, publish, work_directory, work_root
from tasks.types import ArtifactRef, Publication, Retraining, Tick, TrainingOverrides

_RECORD = "retraining.json"


@task(requests=SMALL, timeout=SHORT, **EVERY_TASK)
def look_up(
    train_prompts: str,
    heldout_prompts: str,
    base_model: str,
    config: str,
    overrides: TrainingOverrides,
    format: str,
    seed: int,
    pipeline: str,
) -> Tick:
    """Take in what lies at the four URLs now, and compare it with what the last retraining had.

    Data, configuration, options and the source code of this project decide. The model to start from does
    not: it is `<pipeline>-model@production`, or `base_model` while there is none.

    Raises:
        FileNotFoundError: nothing lies at a URL.
        CheckpointNotFoundError: `base_model` is needed and no Hugging Face directory.
    """
    with executed("look_up"), work_directory("look-up", pipeline=pipeline) as work:
        with fsspec.open(config, "rt") as source:
            text = source.read()
        (work / "config.yaml").write_text(text, encoding="utf-8")
        train = take_file(train_prompts, f"{pipeline}-train-raw")
        heldout = take_file(heldout_prompts, f"{pipeline}-heldout-raw")
        inputs = {
            "training prompts": train.digest,
            "held-out prompts": heldout.digest,
            "configuration": config_key(str(work / "config.yaml")),
            "options": _digest([vars(overrides), format, seed]),
            "code": source_digest(),
        }
        changed, reason = _compare(pipeline, inputs)
        start = _in_production(pipeline) or take_model(base_model, f"{pipeline}-base")
        decks.show(f"Retraining of {pipeline}", html.text(reason), html.lineage(None, [start, train, heldout]))
        return Tick(changed, reason, inputs, start, train, heldout, text)


@task(requests=SMALL, timeout=SHORT, **EVERY_TASK)
def conclude(tick: Tick, publications: list[Publication], pipeline: str) -> Retraining:
    """Record how the tick ended as the artifact `<pipeline>-retraining`; one that was skipped leaves no new record."""
    with executed("conclude"), work_directory("conclude", tick=tick) as work:
        if not publications:
            last = open_store().resolve(f"{pipeline}-retraining")
            record = ArtifactRef(last.kind, last.ref, last.digest, open_store().store_id)
            decks.show(f"Retraining of {pipeline}", html.text(f"skipped: {tick.reason}"), html.lineage(record, ()))
            return Retraining("skipped", tick.reason, record)
        (publication,) = publications
        action = "promoted" if publication.promoted else "kept"
        facts = {"action": action, "cause": tick.reason, "reason": publication.reason, "inputs": tick.inputs}
        (work / _RECORD).write_text(json.dumps(facts, indent=2), encoding="utf-8")
        parents = [publication.report, publication.model, tick.start, tick.train, tick.heldout]
        record = publish(work, kind="evaluation", name=f"{pipeline}-retraining", parents=parents)
        decks.show(f"Retraining of {pipeline}", html.figures(facts), html.lineage(record, parents))
        return Retraining(action, publication.reason, record)


def _compare(pipeline: str, inputs: dict[str, str]) -> tuple[bool, str]:
    """Whether anything differs from the last record, and what."""
    name = f"{pipeline}-retraining"
    if not open_store().aliases(name):
        return True, "nothing was trained here before"
    record = open_store().resolve(name)
    known = json.loads((open_store().fetch(record) / _RECORD).read_text())["inputs"]
    new = [part for part, digest in inputs.items() if known.get(part) != digest]
    if not new:
        return False, f"nothing has changed since {record.ref}"
    return True, f"changed since {record.ref}: {', '.join(new)}"


def _in_production(pipeline: str) -> ArtifactRef | None:
    store, family = open_store(), f"{pipeline}-model"
    if PRODUCTION not in store.aliases(family):
        return None
    model = store.resolve(f"{family}@{PRODUCTION}")
    return ArtifactRef(model.kind, model.ref, model.digest, store.store_id)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def config_file(tick: Tick) -> Path:
    """The configuration of the tick as a file that stays while its tasks run."""
    path = work_root() / "configs" / f"{_digest(tick.config)}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tick.config, encoding="utf-8")
    return path
