"""How tasks reach the artifact store, and where they work before anything is published."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.types import ArtifactRef

if TYPE_CHECKING:
    from relax_engine.lineage import ArtifactStore


def open_store() -> ArtifactStore:
    """The store at `$RELAX_ARTIFACTS` (`./artifacts` by default), opened once per process and location."""
    return _open(os.environ.get("RELAX_ARTIFACTS"))


@functools.lru_cache(maxsize=4)
def _open(url: str | None) -> ArtifactStore:
    from relax_engine.lineage import ArtifactStore

    return ArtifactStore.open(url)


def publish(
    path: Path,
    *,
    kind: str,
    name: str,
    parents: Sequence[ArtifactRef] = (),
    metrics: Mapping[str, float] | None = None,
    config_digest: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    work: Path | None = None,
) -> ArtifactRef:
    """Publish a file or directory (`ArtifactStore.publish`) and return its reference.

    With `work`, the directory of the work it came from, what an earlier attempt at the same work published as `name`
    is returned instead: results that hold the time of day would otherwise be published by each attempt anew.
    """
    earlier = published_before(name, work) if work is not None else None
    if earlier is not None:
        return earlier
    store = open_store()
    artifact = store.publish(
        path,
        kind=kind,
        name=name,
        parents=[parent.ref for parent in parents],
        metrics=metrics,
        config_digest=config_digest,
        metadata={**(metadata or {}), **({"work": work.name} if work is not None else {})},
    )
    return ArtifactRef(artifact.kind, artifact.ref, artifact.digest, store.store_id)


def fetch(artifact: ArtifactRef) -> Path:
    """A verified local copy of an artifact's content: a read-only file or directory."""
    return open_store().fetch(artifact.ref)


def work_root() -> Path:
    """`$RELAX_WORK` (`./build/work` by default): unfinished work and reports of failures."""
    return Path(os.environ.get("RELAX_WORK") or "build/work").absolute()


def published_before(name: str, work: Path) -> ArtifactRef | None:
    """What an earlier attempt at the work in `work` published as `name`, when it was ended before Flyte knew of it.

    The name of the work's directory, a digest of its inputs and of the source code, stands in the artifact's metadata.
    """
    store = open_store()
    versions = store.versions(name) if store.aliases(name) else []
    for version in reversed(versions):
        if version.metadata.get("work") == work.name:
            return ArtifactRef(version.kind, version.ref, version.digest, store.store_id)
    return None


def beside_artifacts(path: str) -> str | None:
    """The URL of `path` under `work/` in the artifact store's bucket; None where the store is a directory."""
    url = os.environ.get("RELAX_ARTIFACTS") or ""
    return f"{url.rstrip('/')}/work/{path}" if "://" in url and not url.startswith("file://") else None


@contextlib.contextmanager
def work_directory(task: str, **inputs: Any) -> Iterator[Path]:
    """A directory that belongs to this task with these inputs.

    It survives a failure or a kill, so that the next attempt finds what was done (a training run resumes), and is
    removed once the block has succeeded, when its results are published; so is what lies `beside_artifacts` under its
    name.
    """
    from tasks.content import source_digest

    text = json.dumps([source_digest(), inputs], sort_keys=True, default=vars)
    directory = work_root() / f"{task}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    directory.mkdir(parents=True, exist_ok=True)
    yield directory
    place = beside_artifacts(directory.name)
    if place is not None:
        from relax_engine.utils.object_store import open_filesystem

        files, path = open_filesystem(place)
        if files.exists(path):
            files.rm(path, recursive=True)
    shutil.rmtree(directory)
