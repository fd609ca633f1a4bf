"""Intake: what a user brings becomes an artifact, addressed by its content."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath

from flytekit import task

from data_prep.sources import COMPRESSIONS
from tasks import decks, html
from tasks.content import ContentDirectory, ContentFile
from tasks.executions import executed
from tasks.settings import CACHE, EVERY_TASK, SHORT, SMALL
from tasks.store import publish, work_directory
from tasks.types import ArtifactRef


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def intake_file(file: ContentFile, pipeline: str, part: str) -> ArtifactRef:
    """Publish a data file, as it is, as the dataset `<pipeline>-<part>-raw`."""
    with executed("intake_file"):
        name = f"{pipeline}-{part}-raw"
        artifact = take_file(str(Path(os.fspath(file)).absolute()), name)
        decks.show(f"Intake of {name}", html.text(f"digest {artifact.digest}"), html.lineage(artifact, ()))
        return artifact


@task(cache=CACHE, requests=SMALL, timeout=SHORT, **EVERY_TASK)
def intake_model(directory: ContentDirectory, pipeline: str) -> ArtifactRef:
    """Publish a Hugging Face directory, as it is, as the model `<pipeline>-base`.

    Raises:
        CheckpointNotFoundError: the directory has no config.json.
    """
    with executed("intake_model"):
        path, name = Path(os.fspath(directory)), f"{pipeline}-base"
        artifact = take_model(str(path), name)
        files = sorted((entry.name, entry.stat().st_size) for entry in path.iterdir() if entry.is_file())
        decks.show(f"Intake of {name}", html.table(("file", "bytes"), files), html.lineage(artifact, ()))
        return artifact


def take_file(url: str, name: str) -> ArtifactRef:
    """Publish the file at a path or fsspec URL as a dataset.

    Raises:
        FileNotFoundError: there is none.
    """
    import fsspec

    path = PurePosixPath(url)
    with work_directory("intake", file=url, name=name) as work:
        # A file's name is part of an artifact's identity; the user's name for it must not be.
        staged = work / f"data{''.join(path.suffixes[-2:]) if path.suffix in COMPRESSIONS else path.suffix}"
        with fsspec.open(url, "rb") as source, staged.open("wb") as target:
            shutil.copyfileobj(source, target)
        return publish(staged, kind="dataset", name=name, metadata={"file": path.name})


def take_model(url: str, name: str) -> ArtifactRef:
    """Publish the Hugging Face directory at a path or fsspec URL as a model.

    Raises:
        CheckpointNotFoundError: it has no config.json.
    """
    from fsspec.core import url_to_fs

    from relax_engine.checkpoint.errors import CheckpointNotFoundError

    files, path = url_to_fs(url)
    if not files.isfile(f"{path}/config.json"):
        raise CheckpointNotFoundError(f"{url} is not a Hugging Face model: it has no config.json")
    if "file" in files.protocol:
        return publish(Path(path), kind="model", name=name)
    with work_directory("intake", directory=url, name=name) as work:
        files.get(path, str(work / "model"), recursive=True)
        return publish(work / "model", kind="model", name=name)
