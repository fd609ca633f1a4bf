"""Retraining: look whether anything changed, and if so, train the production model further.

    pyflyte run workflows/retraining.py retraining --train_prompts s3://bucket/train.parquet \\
        --heldout_prompts s3://bucket/heldout.parquet --base_model s3://bucket/base --config run.yaml

A tick of the schedule, or one call by hand. Which task follows which; the decisions are in `tasks/retraining.py`.
"""

from __future__ import annotations

from flytekit import dynamic, workflow
from flytekit.types.file import FlyteFile

from tasks.retraining import conclude, config_file, look_up
from tasks.types import Retraining, Tick, TrainingOverrides
from workflows.post_training import checked_dataset, improve


@dynamic
def retrain(
    tick: Tick, format: str, overrides: TrainingOverrides, seed: int, margin: float, pipeline: str
) -> Retraining:
    """Nothing if nothing has changed; otherwise from new prompts to a published model."""
    publications = []
    if tick.changed:
        prepared = [
            checked_dataset(raw=raw, format=format, model=tick.start, pipeline=pipeline, part=part)
            for raw, part in ((tick.train, "train"), (tick.heldout, "heldout"))
        ]
        publications.append(
            improve(
                start=tick.start,
                dataset=prepared[0],
                heldout=prepared[1],
                config=FlyteFile(str(config_file(tick))),
                overrides=overrides,
                seed=seed,
                margin=margin,
                pipeline=pipeline,
            )
        )
    return conclude(tick=tick, publications=publications, pipeline=pipeline)


@workflow
def retraining(
    train_prompts: str,
    heldout_prompts: str,
    base_model: str,
    config: str,
    name: str = "post-training",
    format: str = "verl",
    overrides: TrainingOverrides = TrainingOverrides(),
    seed: int = 0,
    margin: float = 0.0,
) -> Retraining:
    """Train `<name>-model@production` further if data, configuration, options or code changed since the last time.

    Args:
        train_prompts: path or URL of the prompts to train on, in layout `format`; its content is looked at each time.
        heldout_prompts: the same for the prompts to evaluate on.
        base_model: Hugging Face directory that the first model is trained from.
        config: YAML file of `relax train`'s settings.
        name: of this pipeline; artifact names begin with it.
        format: layout of the data files.
        overrides: settings that replace those of `config`.
        seed: of prompt order, and of sampling in training and evaluation.
        margin: accuracy by which a model must surely beat the production model to replace it.
    """
    tick = look_up(
        train_prompts=train_prompts,
        heldout_prompts=heldout_prompts,
        base_model=base_model,
        config=config,
        overrides=overrides,
        format=format,
        seed=seed,
        pipeline=name,
    )
    return retrain(tick=tick, format=format, overrides=overrides, seed=seed, margin=margin, pipeline=name)
