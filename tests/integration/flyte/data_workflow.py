"""The data half of the pipeline as a workflow of its own, for the tests beside it."""

from __future__ import annotations

from flytekit import workflow

from tasks.content import ContentDirectory, ContentFile
from tasks.import_checkpoint import import_checkpoint
from tasks.intake import intake_model
from tasks.types import ArtifactRef
from workflows.post_training import prepare_dataset


@workflow
def data_part(file: ContentFile, model: ContentDirectory) -> ArtifactRef:
    """Take in a model and a file, import the one, convert and validate the other."""
    base = intake_model(directory=model, pipeline="t")
    import_checkpoint(model=base, pipeline="t")
    return prepare_dataset(file=file, format="verl", model=base, pipeline="t", part="train")
