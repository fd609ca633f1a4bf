"""A model by the name that a person gives it: a reference into the artifact store, or a directory."""

from __future__ import annotations

from pathlib import Path

from flytekit import task

from tasks import decks, html
from tasks.executions import executed
from tasks.intake import take_model
from tasks.settings import EVERY_TASK, SHORT, SMALL
from tasks.store import open_store
from tasks.types import ArtifactRef


@task(requests=SMALL, timeout=SHORT, **EVERY_TASK)
def find_model(model: str, pipeline: str) -> ArtifactRef:
    """What `model` means now: a reference (`name@production`, `name@vN`, a digest), or a Hugging Face directory or URL.

    A directory is published as `<pipeline>-base`. Not cached, since an alias moves.

    Raises:
        LineageError: no artifact has that reference.
        CheckpointNotFoundError: the directory is no Hugging Face model.
    """
    with executed("find_model"):
        if "://" in model or Path(model).is_dir():
            found = take_model(model, f"{pipeline}-base")
        else:
            artifact = open_store().resolve(model)
            found = ArtifactRef(artifact.kind, artifact.ref, artifact.digest, open_store().store_id)
        decks.show(f"Model of {pipeline}", html.lineage(found, ()))
        return found
