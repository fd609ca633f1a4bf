"""Post-training: from prompts and a Hugging Face model to a better, evaluated and published one.

    pyflyte run workflows/post_training.py post_training --base_model DIR --config run.yaml \\
        --train_prompts train.parquet --heldout_prompts heldout.parquet

Which task follows which; what a task does is in `tasks/`.
"""

from __future__ import annotations

from typing import NamedTuple

from flytekit import dynamic, workflow

from tasks.content import ConfigFile, ContentDirectory, ContentFile
from tasks.convert_dataset import convert_dataset
from tasks.evaluate import evaluate
from tasks.export_checkpoint import export_checkpoint
from tasks.import_checkpoint import import_checkpoint
from tasks.intake import intake_file, intake_model
from tasks.publish import publish
from tasks.settings import CACHE
from tasks.train import train
from tasks.types import ArtifactRef, Publication, SupervisedOptions, TrainingOverrides
from tasks.validate_dataset import validate_dataset
from tasks.warm_start import warm_start


@workflow
def prepare_dataset(file: ContentFile, format: str, model: ArtifactRef, pipeline: str, part: str) -> ArtifactRef:
    """A user's file as a validated dataset: intake, conversion, validation."""
    raw = intake_file(file=file, pipeline=pipeline, part=part)
    return checked_dataset(raw=raw, format=format, model=model, pipeline=pipeline, part=part)


@workflow
def checked_dataset(raw: ArtifactRef, format: str, model: ArtifactRef, pipeline: str, part: str) -> ArtifactRef:
    """A raw dataset, converted and validated."""
    converted = convert_dataset(raw=raw, format=format)
    return validate_dataset(converted=converted, raw=raw, model=model, pipeline=pipeline, part=part)


@dynamic(cache=CACHE)
def starting_model(
    base: ArtifactRef,
    demonstrations: list[ContentFile],
    format: str,
    config: ConfigFile,
    options: SupervisedOptions,
    seed: int,
    pipeline: str,
) -> ArtifactRef:
    """The model RL starts from: `base`, after a warm start on each file of demonstrations, if there are any."""
    model = base
    for number, file in enumerate(demonstrations):
        part = f"demonstrations-{number}" if number else "demonstrations"
        dataset = prepare_dataset(file=file, format=format, model=base, pipeline=pipeline, part=part)
        model = warm_start(model=model, dataset=dataset, config=config, options=options, seed=seed, pipeline=pipeline)
    return model


class Prepared(NamedTuple):
    """The model RL starts from, and what it is trained and evaluated on."""

    start: ArtifactRef
    dataset: ArtifactRef
    heldout: ArtifactRef


@workflow
def prepare(
    train_prompts: ContentFile,
    heldout_prompts: ContentFile,
    base_model: ContentDirectory,
    config: ConfigFile,
    demonstrations: list[ContentFile],
    name: str,
    format: str,
    warm_start_options: SupervisedOptions,
    seed: int,
) -> Prepared:
    """A user's model and files as artifacts, after a warm start if there are demonstrations."""
    base = intake_model(directory=base_model, pipeline=name)
    dataset = prepare_dataset(file=train_prompts, format=format, model=base, pipeline=name, part="train")
    heldout = prepare_dataset(file=heldout_prompts, format=format, model=base, pipeline=name, part="heldout")
    start = starting_model(
        base=base,
        demonstrations=demonstrations,
        format=format,
        config=config,
        options=warm_start_options,
        seed=seed,
        pipeline=name,
    )
    return Prepared(start=start, dataset=dataset, heldout=heldout)


@workflow
def improve(
    start: ArtifactRef,
    dataset: ArtifactRef,
    heldout: ArtifactRef,
    config: ConfigFile,
    overrides: TrainingOverrides,
    seed: int,
    margin: float,
    pipeline: str,
) -> Publication:
    """Evaluate `start`, train it, export what came of it, evaluate that, and publish."""
    before = evaluate(model=start, dataset=heldout, config=config, seed=seed, pipeline=pipeline, stage="before")
    checkpoint = import_checkpoint(model=start, pipeline=pipeline)
    outcome = train(
        checkpoint=checkpoint,
        model=start,
        dataset=dataset,
        config=config,
        overrides=overrides,
        seed=seed,
        pipeline=pipeline,
    )
    model = export_checkpoint(outcome=outcome, origin=start, pipeline=pipeline)
    after = evaluate(model=model, dataset=heldout, config=config, seed=seed, pipeline=pipeline, stage="after")
    return publish(
        model=model,
        before=before,
        after=after,
        outcome=outcome,
        datasets=[dataset, heldout],
        margin=margin,
        pipeline=pipeline,
    )


@workflow
def post_training(
    train_prompts: ContentFile,
    heldout_prompts: ContentFile,
    base_model: ContentDirectory,
    config: ConfigFile,
    demonstrations: list[ContentFile] = [],  # noqa: B006 - Flyte reads the default, nobody changes it
    name: str = "post-training",
    format: str = "verl",
    warm_start_options: SupervisedOptions = SupervisedOptions(),
    overrides: TrainingOverrides = TrainingOverrides(),
    seed: int = 0,
    margin: float = 0.0,
) -> Publication:
    """Convert, validate, import, train, evaluate before and after, export and publish.

    Args:
        train_prompts: prompts to train on, in layout `format`.
        heldout_prompts: prompts to evaluate on, in layout `format`.
        base_model: Hugging Face directory.
        config: YAML file of `relax train`'s settings.
        demonstrations: files of prompts and answers for a supervised warm start; none for no warm start.
        name: of this pipeline; artifact names begin with it.
        format: layout of the data files.
        warm_start_options: length and learning rate of the warm start.
        overrides: settings that replace those of `config`.
        seed: of prompt order, of sampling in training and evaluation, and of the warm start.
        margin: accuracy by which a model must surely beat the production model to replace it.
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
    return improve(
        start=prepared.start,
        dataset=prepared.dataset,
        heldout=prepared.heldout,
        config=config,
        overrides=overrides,
        seed=seed,
        margin=margin,
        pipeline=name,
    )
