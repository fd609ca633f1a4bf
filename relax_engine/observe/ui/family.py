"""The relatives of an artifact, or of a run directory that was published, as boxes and arrows."""

from __future__ import annotations

from typing import Any

from relax_engine.lineage import Artifact, ArtifactStore
from relax_engine.lineage.errors import LineageError
from relax_engine.observe.ui.places import PlaceError


def listing(store_url: str | None) -> list[dict[str, Any]]:
    """The newest version of every name, newest first; nothing where there is no store."""
    try:
        store = ArtifactStore.open(store_url, create=False)
        newest = [artifact for artifact, _ in store.newest()]
    except (LineageError, FileNotFoundError):
        return []
    newest.sort(key=lambda artifact: artifact.created_at, reverse=True)
    return [{"ref": a.ref, "kind": a.kind, "created_at": a.created_at} for a in newest]


def family(store_url: str | None, ref: str) -> dict[str, Any]:
    """`ref` with all its ancestors and descendants: `nodes`, each with its `row` from the oldest, and `edges`.

    Raises:
        PlaceError: there is no store, or no such artifact.
    """
    try:
        store = ArtifactStore.open(store_url, create=False)
        subject = store.resolve(ref)
        members = {a.ref: a for a in (subject, *store.ancestors(subject), *store.descendants(subject))}
    except (LineageError, FileNotFoundError) as error:
        raise PlaceError(str(error)) from error
    rows: dict[str, int] = {}
    return {
        "subject": subject.ref,
        "nodes": [_node(artifact, _row(artifact.ref, members, rows)) for artifact in members.values()],
        "edges": [[link.ref, child.ref] for child in members.values() for link in child.parents if link.ref in members],
    }


def _row(ref: str, members: dict[str, Artifact], rows: dict[str, int]) -> int:
    """The longest way from an artifact without parents."""
    if ref not in rows:
        above = [_row(link.ref, members, rows) for link in members[ref].parents if link.ref in members]
        rows[ref] = 1 + max(above, default=-1)
    return rows[ref]


def _node(artifact: Artifact, row: int) -> dict[str, Any]:
    return {
        "ref": artifact.ref,
        "kind": artifact.kind,
        "digest": artifact.short_digest,
        "created_at": artifact.created_at,
        "commit": artifact.producer.get("git_commit"),
        "metrics": dict(artifact.metrics),
        "files": [{"path": entry.path, "size": entry.size} for entry in artifact.files[:50]],
        "row": row,
    }
