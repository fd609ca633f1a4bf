"""The comparisons of the paper on asynchronous training, at the scale of one's own model, data and machine.

    pyflyte run workflows/reproduce.py reproduce --base_model DIR --config run.yaml \\
        --train_prompts train.parquet --heldout_prompts heldout.parquet --expert_models '["DIR"]'
"""

from __future__ import annotations

from flytekit import dynamic, workflow

from tasks.content import ConfigFile, ContentDirectory, ContentFile
from tasks.reproduction import paper_report, paper_variants, replay_variants
from tasks.settings import CACHE
from tasks.types import ArtifactRef, SupervisedOptions
from workflows.sweep import sweep


@dynamic(cache=CACHE)
def compare_replays(
    expert_models: list[ContentDirectory],
    train_prompts: ContentFile,
    heldout_prompts: ContentFile,
    config: ConfigFile,
    demonstrations: list[ContentFile],
    name: str,
    format: str,
    warm_start_options: SupervisedOptions,
    num_rollout: int,
    runs: str,
    seed: int,
) -> list[ArtifactRef]:
    """For each mixture of experts a comparison of runs without and with routing replay."""
    comparisons = []
    for number, model in enumerate(expert_models):
        comparison = sweep(
            train_prompts=train_prompts,
            heldout_prompts=heldout_prompts,
            base_model=model,
            config=config,
            variants=replay_variants(num_rollout=num_rollout, runs=runs),
            demonstrations=demonstrations,
            name=f"{name}-experts-{number}" if number else f"{name}-experts",
            format=format,
            warm_start_options=warm_start_options,
            seed=seed,
        )
        comparisons.append(comparison)
    return comparisons


@workflow
def reproduce(
    train_prompts: ContentFile,
    heldout_prompts: ContentFile,
    base_model: ContentDirectory,
    config: ConfigFile,
    expert_models: list[ContentDirectory] = [],  # noqa: B006 - Flyte reads the default, nobody changes it
    demonstrations: list[ContentFile] = [],  # noqa: B006
    name: str = "reproduce",
    format: str = "verl",
    warm_start_options: SupervisedOptions = SupervisedOptions(),
    num_rollout: int = 120,
    runs: str = "all",
    seed: int = 0,
) -> ArtifactRef:
    """Train in every mode, at several bounds of staleness, and experts with and without routing replay; returns the
    report, `<name>-report`.

    Args:
        train_prompts: prompts to train on, in layout `format`.
        heldout_prompts: prompts to evaluate on, in layout `format`.
        base_model: Hugging Face directory.
        config: YAML file of `relax train`'s settings.
        expert_models: Hugging Face directories of mixtures of experts, for routing replay.
        demonstrations: files of prompts and answers for a supervised warm start that all runs share.
        name: artifact names begin with it.
        format: layout of the data files.
        warm_start_options: length and learning rate of the warm start.
        num_rollout: steps of each run.
        runs: `all`, or `deterministic`: those that repeat themselves bit by bit, so that two reports have equal tables.
        seed: of prompt order, of sampling, and of the warm start.
    """
    variants = paper_variants(num_rollout=num_rollout, runs=runs)
    comparison = sweep(
        train_prompts=train_prompts,
        heldout_prompts=heldout_prompts,
        base_model=base_model,
        config=config,
        variants=variants,
        demonstrations=demonstrations,
        name=name,
        format=format,
        warm_start_options=warm_start_options,
        seed=seed,
    )
    replays = compare_replays(
        expert_models=expert_models,
        train_prompts=train_prompts,
        heldout_prompts=heldout_prompts,
        config=config,
        demonstrations=demonstrations,
        name=name,
        format=format,
        warm_start_options=warm_start_options,
        num_rollout=num_rollout,
        runs=runs,
        seed=seed,
    )
    return paper_report(comparison=comparison, replays=replays, runs=runs, pipeline=name)
