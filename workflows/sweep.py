"""Several trainings from one start, differing in settings, compared in one table.

    pyflyte run workflows/sweep.py sweep --base_model DIR --config run.yaml \\
        --train_prompts train.parquet --heldout_prompts heldout.parquet \\
        --variants '[{"settings": {"lr": "0.0001"}}, {"settings": {"lr": "0.0003"}}]'
"""

from __future__ import annotations

import functools

from flytekit import map_task, workflow

from tasks.compare import compare_runs
from tasks.content import ConfigFile, ContentDirectory, ContentFile
from tasks.evaluate import evaluate
from tasks.export_checkpoint import export_checkpoint
from tasks.import_checkpoint import import_checkpoint
from tasks.train import train
from tasks.types import ArtifactRef, SupervisedOptions, TrainingOverrides
from workflows.post_training import prepare


@workflow
def sweep(
    train_prompts: ContentFile,
    heldout_prompts: ContentFile,
    base_model: ContentDirectory,
    config: ConfigFile,
    variants: list[TrainingOverrides],
    demonstrations: list[ContentFile] = [],  # noqa: B006 - Flyte reads the default, nobody changes it
    name: str = "sweep",
    format: str = "verl",
    warm_start_options: SupervisedOptions = SupervisedOptions(),
    seed: int = 0,
) -> ArtifactRef:
    """Train, export and evaluate every variant; returns the comparison, `<name>-comparison`.

    Args:
        train_prompts: prompts to train on, in layout `format`.
        heldout_prompts: prompts to evaluate on, in layout `format`.
        base_model: Hugging Face directory.
        config: YAML file of `relax train`'s settings.
        variants: what is different in each training.
        demonstrations: files of prompts and answers for a supervised warm start that all variants share.
        name: artifact names begin with it.
        format: layout of the data files.
        warm_start_options: length and learning rate of the warm start.
        seed: of prompt order, of sampling, and of the warm start.
    """
    prepared = prepare(
        train_prompts=train_prompts,
        heldout_prompts=heldout_prompts,
        base_model=base_model,
        config=config,
        demonstrations=demonstrations,
        name=name,
        format=format,
        warm_start_options=warm_start_options,
        seed=seed,
    )
    start, dataset, heldout = prepared.start, prepared.dataset, prepared.heldout
    before = evaluate(model=start, dataset=heldout, config=config, seed=seed, pipeline=name, stage="before")
    checkpoint = import_checkpoint(model=start, pipeline=name)
    same = {"config": config, "seed": seed, "pipeline": name}
    # One after the other: each has a Ray cluster's worth of work.
    outcomes = map_task(
        functools.partial(train, checkpoint=checkpoint, model=start, dataset=dataset, **same), concurrency=1
    )(overrides=variants)
    models = map_task(functools.partial(export_checkpoint, origin=start, pipeline=name), concurrency=1)(
        outcome=outcomes
    )
    evaluations = map_task(functools.partial(evaluate, dataset=heldout, stage="after", **same), concurrency=1)(
        model=models
    )
    return compare_runs(
        title=name,
        variants=variants,
        outcomes=outcomes,
        before=before,
        evaluations=evaluations,
        pipeline=name,
    )
