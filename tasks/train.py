"""The RL run: `relax_engine.train` on a Ray cluster, its record and its last checkpoint published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from flytekit import task

from tasks import decks, html
from tasks.configs import DUMPS, training_config
from tasks.content import ConfigFile, config_key
from tasks.executions import executed
from tasks.run_report import deck, markdown
from tasks.settings import TRAINING
from tasks.store import fetch, publish, published_before, work_directory
from tasks.types import ArtifactRef, TrainingOutcome, TrainingOverrides

if TYPE_CHECKING:
    from relax_engine.config import RunConfig
    from relax_engine.core.result import RunResult


@task(**TRAINING)
def train(
    checkpoint: ArtifactRef,
    model: ArtifactRef,
    dataset: ArtifactRef,
    config: ConfigFile,
    overrides: TrainingOverrides,
    seed: int,
    pipeline: str,
) -> TrainingOutcome:
    """Train from `checkpoint` on `dataset`; `model` gives architecture and tokenizer.

    Publishes the run as `<pipeline>-run` and its last checkpoint as `<pipeline>-checkpoint`. An attempt after a
    failure or a kill resumes from the last complete checkpoint; one whose results are published already returns them.

    Raises:
        ConfigError: the configuration cannot run.
        RelaxError: a role failed.
    """
    inputs = {"checkpoint": checkpoint, "dataset": dataset, "config": config_key(config)}
    with executed("train"), work_directory("train", **inputs, overrides=overrides, seed=seed) as work:
        from relax_engine import train as run_training

        run = published_before(f"{pipeline}-run", work)
        trained = published_before(f"{pipeline}-checkpoint", work)
        if run is not None and trained is not None:
            decks.show(
                f"Training of {pipeline}", html.text("an earlier attempt finished it"), html.lineage(trained, [run])
            )
            return TrainingOutcome(run=run, checkpoint=trained)
        run_config = training_config(
            config,
            overrides,
            model=fetch(model),
            checkpoint=fetch(checkpoint),
            dataset=fetch(dataset),
            work=work,
            seed=seed,
        )
        result = run_training(run_config)
        parents = [dataset, checkpoint]
        document = decks.show(f"Training of {pipeline}", *deck(result, run_config), html.lineage(None, parents))
        record = _record(work, result, run_config, document)
        digest = run_config.digest()
        metrics = {"steps": result.steps, "reward": result.reward_curve[-1], "wall_seconds": result.wall_seconds}
        run = publish(
            record,
            kind="run",
            name=f"{pipeline}-run",
            parents=parents,
            metrics=metrics,
            config_digest=digest,
            work=work,
        )
        trained = publish(
            Path(str(result.checkpoint_dir)),
            kind="checkpoint",
            name=f"{pipeline}-checkpoint",
            parents=[run],
            config_digest=digest,
            work=work,
        )
        return TrainingOutcome(run=run, checkpoint=trained)


def _record(work: Path, result: RunResult, config: RunConfig, document: str) -> Path:
    """What is kept of a run: result, configuration, metrics of every step, timeline and report."""
    record = work / "record"
    shutil.rmtree(record, ignore_errors=True)
    record.mkdir()
    (record / "report.html").write_text(document, encoding="utf-8")
    (record / "report.md").write_text(markdown(result, config, record), encoding="utf-8")
    (record / "result.json").write_text(json.dumps({**result.to_dict(), "mode": config.mode}, indent=2))
    (record / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    for pattern in ("*.json*", "*.parquet"):
        for file in Path(result.run_dir).glob(pattern):
            shutil.copy(file, record / file.name)
    if Path(result.run_dir, "rollouts").exists():
        shutil.copytree(Path(result.run_dir, "rollouts"), record / "rollouts")
    if config.flat.dump_details is not None:
        shutil.copytree(config.flat.dump_details, record / DUMPS)
    return record
