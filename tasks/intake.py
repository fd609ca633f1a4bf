"""Intake: what a user brings becomes an artifact, addressed by its content."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flytekit import task

from data_prep.sources import COMPRESSIONS
from tasks import decks, html
from tasks.content import ContentDirectory, ContentFile
from tasks.executions import executed
from tasks.settings import CACHE, RETRIES, SHORT, SMALL
from tasks.store import publish, work_directory
from tasks.types import ArtifactRef


@task(cache=CACHE, requests=SMALL, retries=RETRIES, timeout=SHORT, enable_deck=True, deck_fields=())
def intake_file(file: ContentFile, pipeline: str, part: str) -> ArtifactRef:
    """Publish a data file, as it is, as the dataset `<pipeline>-<part>-raw`."""
    with executed("intake_file"):
        path, name = Path(os.fspath(file)), f"{pipeline}-{part}-raw"
        with work_directory("intake", file=str(path.absolute()), name=name) as work:
            # A file's name is part of an artifact's identity; the user's name for it must not be.
            staged = work / f"data{''.join(path.suffixes[-2:]) if path.suffix in COMPRESSIONS else path.suffix}"
            shutil.copyfile(path, staged)
            artifact = publish(staged, kind="dataset", name=name, metadata={"file": path.name})
        figures = {"file": path.name, "bytes": path.stat().st_size, "digest": artifact.digest}
        decks.show(f"Intake of {name}", html.figures(figures), html.lineage(artifact, ()))
        return artifact


@task(cache=CACHE, requests=SMALL, retries=RETRIES, timeout=SHORT, enable_deck=True, deck_fields=())
def intake_model(directory: ContentDirectory, pipeline: str) -> ArtifactRef:
    """Publish a Hugging Face directory, as it is, as the model `<pipeline>-base`.

    Raises:
        CheckpointNotFoundError: the directory has no config.json.
    """
    with executed("intake_model"):
        from relax_engine.checkpoint.errors import CheckpointNotFoundError

        path = Path(os.fspath(directory))
        if not (path / "config.json").is_file():
            raise CheckpointNotFoundError(f"{path} is not a Hugging Face model: it has no config.json")
        name = f"{pipeline}-base"
        artifact = publish(path, kind="model", name=name)
        files = sorted((entry.name, entry.stat().st_size) for entry in path.iterdir() if entry.is_file())
        decks.show(f"Intake of {name}", html.table(("file", "bytes"), files), html.lineage(artifact, ()))
        return artifact
