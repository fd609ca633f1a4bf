"""Garbage collection: removing what no name reaches.

Everything that a reference holds stays: its manifests, their files, their back-references. What goes are
the leavings of publications that never finished, once they are older than a grace period in which a living
publication would have ended. What does not live here: a way to remove a version of a name; there is none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from relax_engine.lineage.backend import Backend
from relax_engine.lineage.checkout import blob_key
from relax_engine.lineage.names import MARKS_FOLDER, mark_key
from relax_engine.lineage.records import ManifestTable, manifest_key
from relax_engine.lineage.refs import ReferenceTable

GRACE_S = 24 * 3600.0
_FOLDERS = ("blobs/", "uses/", "children/", "manifests/", MARKS_FOLDER)


@dataclass(slots=True)
class Collected:
    """Keys that were removed (or would be), and how many objects stay."""

    removed: list[str] = field(default_factory=list)
    kept: int = 0


def collect(
    backend: Backend,
    references: ReferenceTable,
    manifests: ManifestTable,
    *,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
) -> Collected:
    """Remove objects that no reference reaches and that are older than ``grace_s`` seconds.

    Candidates are listed first and references read afterwards, so that a version committed meanwhile keeps
    its objects. A publication renews the blobs that it reuses, and checks them once more when it has committed:
    it would have to begin and end between this function's look at one blob's age and the removal of that blob to
    lose it.

    Raises:
        CorruptArtifactError: a manifest that a reference holds is missing; nothing was removed.
    """
    result = Collected()
    limit = time.time() - grace_s
    old = [key for folder in _FOLDERS for key, modified in backend.list_modified(folder) if modified < limit]
    reachable = set(_reachable(references, manifests))
    for key in old:
        if key in reachable or (backend.modified(key) or limit) >= limit:
            result.kept += 1
            continue
        if not dry_run:
            backend.remove(key)
        result.removed.append(key)
    for write in backend.unfinished():
        if write.began < limit:
            if not dry_run:
                write.discard()
            result.removed.append(write.key)
    return result


def _reachable(references: ReferenceTable, manifests: ManifestTable) -> Iterator[str]:
    for name in references.names():
        reference = references.read(name)
        if reference is not None:
            yield mark_key(name, reference.kind)
        for version in reference.versions if reference else ():
            artifact = manifests.load(version)
            yield manifest_key(version.digest, version.record)
            for entry in artifact.files:
                yield blob_key(entry.sha256)
            yield from manifests.back_references(version.digest, version.record, artifact.files, artifact.parents)
