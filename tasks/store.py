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
) -> ArtifactRef:
    """Publish a file or directory (`ArtifactStore.publish`) and return its reference."""
    store = open_store()
    artifact = store.publish(
        path,
        kind=kind,
        name=name,
        parents=[parent.ref for parent in parents],
        metrics=metrics,
        config_digest=config_digest,
        metadata=metadata,
    )
    return ArtifactRef(artifact.kind, artifact.ref, artifact.digest, store.store_id)


def fetch(artifact: ArtifactRef) -> Path:
    """A verified local copy of an artifact's content: a read-only file or directory."""
    return open_store().fetch(artifact.ref)


def work_root() -> Path:
    """`$RELAX_WORK` (`./build/work` by default): unfinished work and reports of failures."""
    return Path(os.environ.get("RELAX_WORK") or "build/work").absolute()


@contextlib.contextmanager
def work_directory(task: str, **inputs: Any) -> Iterator[Path]:
    """A directory that belongs to this task with these inputs.

    It survives a failure or a kill, so that the next attempt finds what was done (a training run resumes), and is
    removed once the block has succeeded, when its results are published.
    """
    from tasks.content import source_digest

    text = json.dumps([source_digest(), inputs], sort_keys=True, default=vars)
    directory = work_root() / f"{task}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    directory.mkdir(parents=True, exist_ok=True)
    yield directory
    shutil.rmtree(directory)
