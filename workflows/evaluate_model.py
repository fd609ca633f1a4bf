"""Evaluation of one model, by reference or directory.

    pyflyte run workflows/evaluate_model.py evaluate_model --model my-model-model@production \\
        --prompts heldout.parquet --config run.yaml
"""

from __future__ import annotations

from flytekit import workflow

from tasks.content import ConfigFile, ContentFile
from tasks.evaluate import evaluate
from tasks.find_model import find_model
from tasks.types import Evaluation
from workflows.post_training import prepare_dataset


@workflow
def evaluate_model(
    model: str,
    prompts: ContentFile,
    config: ConfigFile,
    name: str = "evaluation",
    format: str = "verl",
    seed: int = 0,
) -> Evaluation:
    """Convert and validate `prompts`, and score `model` on them, sampled and greedy.

    Args:
        model: a reference such as `my-model-model@production`, or the path or URL of a Hugging Face directory.
        prompts: file of prompts, in layout `format`.
        config: YAML file of `relax train`'s settings; sampling and reward are taken from it.
        name: artifact names begin with it.
        format: layout of the prompts.
        seed: of sampling.
    """
    found = find_model(model=model, pipeline=name)
    dataset = prepare_dataset(file=prompts, format=format, model=found, pipeline=name, part="heldout")
    return evaluate(model=found, dataset=dataset, config=config, seed=seed, pipeline=name, stage="alone")
