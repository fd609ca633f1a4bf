"""Import of a Hugging Face model into the trainer's checkpoint format."""

from __future__ import annotations

import shutil

from flytekit import task

from tasks import decks, html
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, MEDIUM, SHORT
from tasks.store import fetch, publish, work_directory
from tasks.types import ArtifactRef


@task(cache=CACHE, requests=MEDIUM, timeout=SHORT, **EVERY_TASK)
def import_checkpoint(model: ArtifactRef, pipeline: str) -> ArtifactRef:
    """Convert `model` to a distributed checkpoint and publish it as `<pipeline>-start`.

    Raises:
        UnknownArchitectureError: the model's architecture has no mapping.
        CheckpointNotFoundError, DamagedCheckpointError: the directory is incomplete.
    """
    with executed("import_checkpoint"), work_directory("import", model=model) as work:
        from relax_engine import import_checkpoint as convert

        shutil.rmtree(work / "checkpoint", ignore_errors=True)
        result = convert(fetch(model), work / "checkpoint")
        artifact = publish(result.root, kind="checkpoint", name=f"{pipeline}-start", parents=[model])
        figures = {
            "architecture": result.architecture,
            "parameters": result.num_parameters,
            "bytes of weights": result.nbytes,
        }
        decks.show(f"Import of {model.ref}", html.figures(figures), html.lineage(artifact, [model]))
        return artifact
