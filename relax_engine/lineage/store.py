"""The artifact store: publish, resolve, fetch, tag, verify, and the walks over parents and children.

Order of a publication: blobs, manifest with its back-references, and last the name's reference by
compare-and-swap. A writer killed anywhere before the last step leaves only objects nobody can see;
publishing again reuses the blobs it had finished. Two writers of one name each get their own version.
Content rules are ``manifest.py``'s, conditional writes ``backend.py``'s.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relax_engine.lineage.backend import Backend, at_once, open_backend
from relax_engine.lineage.checkout import blob_key, checkout
from relax_engine.lineage.collect import GRACE_S, Collected, collect
from relax_engine.lineage.diff import ArtifactDiff, compare
from relax_engine.lineage.errors import AliasConflictError, ArtifactNotFoundError, InvalidNameError, StoreUrlError
from relax_engine.lineage.events import event_key, publication_event
from relax_engine.lineage.hashing import list_files, sha256_file, sha256_stream
from relax_engine.lineage.manifest import (
    Artifact,
    FileEntry,
    ParentLink,
    artifact_digest,
    canonical_json,
    check_alias,
    check_kind,
    check_name,
    check_schema,
    manifest_bytes,
)
from relax_engine.lineage.names import NameTable
from relax_engine.lineage.producer import describe_producer
from relax_engine.lineage.records import ManifestTable
from relax_engine.lineage.refs import Move, Reference, ReferenceTable, Version
from relax_engine.lineage.resolve import Resolver

STORE_SCHEMA = 1
DEFAULT_URL = "artifacts"
_RENEW_S = 3600.0
"""Age at which a blob that is used again is made young; well below any grace period of a collection."""
_ANY: Any = object()

logger = logging.getLogger(__name__)


class ArtifactStore:
    """Immutable, content-addressed artifacts under one root URL. Safe for any number of processes."""

    def __init__(self, backend: Backend, store_id: str) -> None:
        self.url = backend.url
        self.store_id = store_id
        self._backend = backend
        self._references = ReferenceTable(backend)
        self._manifests = ManifestTable(backend, self._references)
        self._names = NameTable(backend, self._references)
        self._resolver = Resolver(self._references, self._manifests, self._names)

    @classmethod
    def open(cls, url: str | None = None, *, create: bool = True) -> ArtifactStore:
        """Open the store at ``url``, else at ``$RELAX_ARTIFACTS``, else ``./artifacts``.

        Raises:
            StoreUrlError: no store there and ``create`` is False, or a URL that cannot hold one.
            StoreSchemaError: the store was made by a release with another layout.
        """
        backend = open_backend(url or os.environ.get("RELAX_ARTIFACTS") or DEFAULT_URL, create=create)
        if create:
            identity = {"schema": STORE_SCHEMA, "store_id": uuid.uuid4().hex}
            backend.put_if_absent("store.json", canonical_json(identity))
        stored = backend.get("store.json")
        if stored is None:
            raise StoreUrlError(f"no artifact store at {backend.url}")
        document = json.loads(stored.data)
        check_schema(document, STORE_SCHEMA, f"artifact store {backend.url}")
        return cls(backend, document["store_id"])

    def publish(
        self,
        path: Path | str,
        *,
        kind: str,
        name: str,
        parents: Sequence[Artifact | str] = (),
        metrics: Mapping[str, float] | None = None,
        config_digest: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Artifact:
        """Store a file or directory as the next version of ``name``.

        The same content with the same parents under the same name is the version that already exists: it
        is returned as first published, with its first metrics and producer. The same content from other
        parents is a new version with the same digest (its lineage differs), sharing all bytes.

        Args:
            path: file or directory; links are followed, files are streamed.
            kind: dataset, checkpoint, run, evaluation or model; a name keeps the kind of its first version.
            parents: what it was made from: artifacts of this store or references to them.
            metrics: key figures, finite numbers.
            config_digest: digest of the configuration that produced it.
            metadata: further JSON values.

        Raises:
            InvalidNameError: kind or name not allowed, the name holds another kind, or nothing to publish.
            FileNotFoundError: ``path``, or the target of a link in it, does not exist.
            ArtifactNotFoundError: a parent is not in this store.
            SourceChangedError: a file changed meanwhile.
        """
        check_kind(kind)
        check_name(name)
        self._check_kind_of_name(self._references.read(name), name, kind)
        links = tuple(self._link(parent) for parent in parents)
        root = Path(path)
        sources = list_files(root)
        files = tuple(FileEntry(rel, sha256_file(source), source.stat().st_size) for rel, source in sources)
        layout = "file" if root.is_file() else "directory"
        digest = artifact_digest(kind, layout, files)
        parent_digests = tuple(sorted({link.digest for link in links}))

        before = self._references.read(name)
        existing = before.find(digest, parent_digests) if before else None
        blobs = [(source, entry) for (_, source), entry in zip(sources, files, strict=True)]
        for source, entry in blobs:
            self._keep_blob(source, entry)
        if existing is not None:
            return self._announced(self._manifests.load(existing))
        document = manifest_bytes(
            digest=digest,
            kind=kind,
            name=name,
            layout=layout,
            files=files,
            parents=links,
            producer=describe_producer(config_digest),
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            metrics=_figures(metrics or {}),
            metadata=metadata or {},
        )
        record = self._manifests.write(document, digest, files, links)
        if before is None:
            self._names.declare(name, kind)

        def append(reference: Reference | None) -> Reference:
            self._check_kind_of_name(reference, name, kind)
            current = reference or Reference(name, kind)
            return current if current.find(digest, parent_digests) else current.appended(digest, record, parent_digests)

        committed = self._references.update(name, append).find(digest, parent_digests)
        assert committed is not None
        for source, entry in blobs:
            # A collection that looked before the commit may just have taken a blob that was there already.
            self._backend.upload(source, blob_key(entry.sha256), entry.sha256)
        if before is None:
            self._names.committed(name, kind)
        artifact = self._announced(self._manifests.load(committed))
        logger.info("published %s %s (%s, %d files, %d bytes)", kind, artifact.ref, digest, len(files), artifact.size)
        return artifact

    def resolve(self, ref: str) -> Artifact:
        """The artifact for ``name``, ``name@vN``, ``name@alias``, ``kind/name``, a digest prefix or a path.

        Raises:
            ArtifactNotFoundError: nothing answers.
            AmbiguousReferenceError: a digest prefix of several artifacts.
        """
        return self._resolver.resolve(ref)

    def holders(self, path: Path | str) -> list[Artifact]:
        """Artifacts that hold this file, or are this directory, by content; oldest first."""
        return self._resolver.holders(Path(path))

    def fetch(self, artifact: Artifact | str) -> Path:
        """A verified, read-only local directory (or file, if one file was published) with the content.

        Raises:
            CorruptArtifactError: stored bytes are missing or altered.
        """
        return checkout(self._backend, self._artifact(artifact), self._cache())

    def tag(self, name: str, alias: str, target: Artifact | str, *, expected: str | None = _ANY) -> Artifact:
        """Point ``name@alias`` at one of the name's versions and return that version.

        Args:
            target: the version: an artifact, its digest, or a reference.
            expected: when given, the reference (``name@vN``) the alias must point to now, or None for "must not
                exist yet"; of several writers that expect the same state exactly one succeeds.

        Raises:
            AliasConflictError: the alias does not point to ``expected`` any more.
            ArtifactNotFoundError: ``target`` is not a version of ``name``.
        """
        check_alias(alias)
        wanted = self._artifact(target)
        chosen = 0

        def point(reference: Reference | None) -> Reference:
            nonlocal chosen
            version = reference and (reference.holding(wanted.record) or _with_digest(reference, wanted.digest))
            if not reference or not version:
                raise ArtifactNotFoundError(f"cannot tag {name}@{alias}: {wanted.ref} is not a version of {name!r}")
            chosen = version.version
            number = dict(reference.aliases).get(alias)
            present = f"{name}@v{number}" if number else None
            if expected is not _ANY and present != expected:
                raise AliasConflictError(
                    f"{name}@{alias} points to {present or 'nothing'}, not to {expected or 'nothing'}: another writer "
                    "moved it; read it again and decide anew"
                )
            return reference.pointing(alias, chosen)

        self._references.update(name, point)
        return self.resolve(f"{name}@v{chosen}")

    def rollback(self, name: str, alias: str) -> Artifact:
        """Point ``name@alias`` back at the version it pointed at before, and return that; again, at the one before it.

        Raises:
            ArtifactNotFoundError: the alias never pointed at another version, or the name is unknown.
        """

        def back(reference: Reference | None) -> Reference:
            version = reference and reference.before(alias)
            if not reference or not version:
                raise ArtifactNotFoundError(
                    f"{name}@{alias} cannot go back: no earlier move of it is recorded; "
                    f"`relax lineage tag {name} {alias} {name}@vN` points it at any version"
                )
            return reference.pointing(alias, version, back=True)

        return self.resolve(f"{name}@v{dict(self._references.update(name, back).aliases)[alias]}")

    def moves(self, name: str) -> tuple[Move, ...]:
        """Every move of the name's aliases, oldest first."""
        reference = self._references.read(name)
        return reference.moves if reference else ()

    def verify(self, artifact: Artifact | str) -> list[str]:
        """Re-hash every stored byte; one message per file that is missing or altered, empty when all is well."""
        subject = self._artifact(artifact)
        problems = []
        if artifact_digest(subject.kind, subject.layout, subject.files) != subject.digest:
            problems.append(f"manifest: its files do not give the digest {subject.digest}")
        for entry in subject.files:
            try:
                with self._backend.open(blob_key(entry.sha256)) as stream:
                    found = sha256_stream(stream)
            except FileNotFoundError:
                problems.append(f"{entry.path}: blob {entry.sha256} is missing")
                continue
            if found != entry.sha256:
                problems.append(f"{entry.path}: stored bytes hash to {found}, manifest says {entry.sha256}")
        return problems

    def ancestors(self, artifact: Artifact | str) -> list[Artifact]:
        """Everything it was made from, nearest first, each once."""
        return _walk(self._artifact(artifact), self._parents)

    def descendants(self, artifact: Artifact | str) -> list[Artifact]:
        """Everything made from its content, nearest first, each once."""
        return _walk(self._artifact(artifact), lambda level: self._manifests.with_parents([a.digest for a in level]))

    def parents(self, artifact: Artifact) -> list[Artifact]:
        """The artifacts it was made from directly, in the order they were given."""
        return self._parents([artifact])

    def versions(self, name: str) -> list[Artifact]:
        """All versions of a name, oldest first."""
        reference = self._references.read(name)
        if reference is None:
            raise ArtifactNotFoundError(f"no artifact is named {name!r}; `relax lineage list` shows the names")
        return at_once(self._manifests.load, reference.versions)

    def aliases(self, name: str) -> dict[str, int]:
        """Alias -> version number, ``latest`` included; empty for an unknown name."""
        reference = self._references.read(name)
        return _aliases(reference) if reference else {}

    def names(self, kind: str | None = None) -> list[str]:
        """Published names, sorted; of one kind when given."""
        return self._names.names(kind)

    def newest(self, kind: str | None = None) -> list[tuple[Artifact, dict[str, int]]]:
        """The newest version of every name, of one kind when given, with the name's aliases; sorted by name."""

        references = [found for found in at_once(self._references.read, self.names(kind)) if found]
        newest = at_once(self._manifests.load, [reference.versions[-1] for reference in references])
        return [(artifact, _aliases(reference)) for artifact, reference in zip(newest, references, strict=True)]

    def diff(self, left: Artifact | str, right: Artifact | str) -> ArtifactDiff:
        """What differs between two artifacts, and between what they were made from."""
        return compare(self._artifact(left), self._artifact(right), self.ancestors)

    def collect_garbage(self, *, grace_s: float = GRACE_S, dry_run: bool = False) -> Collected:
        """Remove what publications left that never finished; no version of any name is ever touched.

        Args:
            grace_s: seconds that an unreachable object must be old, longer than any publication takes.
            dry_run: report only.
        """
        return collect(self._backend, self._references, self._manifests, grace_s=grace_s, dry_run=dry_run)

    def _announced(self, artifact: Artifact) -> Artifact:
        """Keep the publication's event; one that a killed writer left out is made up for when it publishes again."""
        event = canonical_json(publication_event(artifact, self.url))
        self._backend.put_if_absent(event_key(artifact.record), event)
        return artifact

    def _keep_blob(self, source: Path, entry: FileEntry) -> None:
        """Store a file, or make a stored one young, so that no collection takes it before the commit."""
        key = blob_key(entry.sha256)
        modified = self._backend.modified(key)
        if modified is not None and modified < time.time() - _RENEW_S:
            with contextlib.suppress(FileNotFoundError):
                self._backend.renew(key)
        self._backend.upload(source, key, entry.sha256)

    def _parents(self, level: Sequence[Artifact]) -> list[Artifact]:
        return at_once(self.resolve, list(dict.fromkeys(link.ref for artifact in level for link in artifact.parents)))

    def _artifact(self, artifact: Artifact | str) -> Artifact:
        return self.resolve(artifact) if isinstance(artifact, str) else artifact

    def _link(self, parent: Artifact | str) -> ParentLink:
        found = self.resolve(parent if isinstance(parent, str) else parent.ref)
        if not isinstance(parent, str) and parent.digest != found.digest:
            raise ArtifactNotFoundError(f"parent {parent.ref} ({parent.short_digest}) belongs to another store")
        return ParentLink(found.ref, found.digest)

    def _check_kind_of_name(self, reference: Reference | None, name: str, kind: str) -> None:
        if reference is not None and reference.kind != kind:
            raise InvalidNameError(
                f"cannot publish a {kind} as {name!r}: that name holds artifacts of kind {reference.kind}; "
                f"choose another name, such as {name}-{kind}"
            )

    def _cache(self) -> Path:
        if self._backend.cache_directory is not None:
            return self._backend.cache_directory
        return Path.home() / ".cache" / "relax-engine" / "artifacts" / self.store_id


def _with_digest(reference: Reference, digest: str) -> Version | None:
    return next((version for version in reference.versions if version.digest == digest), None)


def _aliases(reference: Reference) -> dict[str, int]:
    return {**dict(reference.aliases), "latest": len(reference.versions)}


def _figures(metrics: Mapping[str, float]) -> dict[str, float]:
    figures = {key: float(value) for key, value in metrics.items()}
    for key, value in figures.items():
        if not math.isfinite(value):
            raise ValueError(f"metric {key!r} is {value}; a manifest holds finite numbers only")
    return figures


def _walk(start: Artifact, neighbours: Callable[[list[Artifact]], list[Artifact]]) -> list[Artifact]:
    """Level after level; `neighbours` are those of all artifacts of a level together."""
    found, level = {start.ref: start}, [start]
    while level:
        level = [other for other in neighbours(level) if other.ref not in found]
        found |= {other.ref: other for other in level}
    return list(found.values())[1:]
