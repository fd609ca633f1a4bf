"""Manifest documents and the back-references that make lookups direct.

Keys: ``manifests/<aa>/<digest>.<record>.json`` holds the document; the empty objects
``uses/<aa>/<file sha256>.<digest>.<record>`` and ``children/<aa>/<parent digest>.<digest>.<record>`` answer
"which artifacts hold this file" and "what was made from this" by one listing. All are written before
the name's reference, so none is missing for a visible artifact; the ones of a publication that never
finished point to a record no reference holds and are passed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from relax_engine.lineage.backend import Backend, Stored, at_once
from relax_engine.lineage.errors import CorruptArtifactError
from relax_engine.lineage.manifest import Artifact, FileEntry, ParentLink, parse_manifest
from relax_engine.lineage.refs import ReferenceTable, Version

_RECORD_DIGITS = 32
_SUFFIX = ".json"


class ManifestTable:
    """All manifests of a store, seen through the references that make them visible."""

    def __init__(self, backend: Backend, references: ReferenceTable) -> None:
        self._backend = backend
        self._references = references

    def write(self, document: bytes, digest: str, files: tuple[FileEntry, ...], parents: tuple[ParentLink, ...]) -> str:
        """Store a manifest and its back-references; returns its record id. Still invisible afterwards."""
        record = record_id(document)
        for key in self.back_references(digest, record, files, parents):
            self._backend.put_if_absent(key, b"")
        self._backend.put_if_absent(manifest_key(digest, record), document)
        return record

    @staticmethod
    def back_references(
        digest: str, record: str, files: tuple[FileEntry, ...], parents: tuple[ParentLink, ...]
    ) -> Iterator[str]:
        """Keys of the empty objects that lead from a manifest's files and parents back to it."""
        for file_hash in sorted({entry.sha256 for entry in files}):
            yield f"uses/{file_hash[:2]}/{file_hash}.{digest}.{record}"
        for parent in sorted({link.digest for link in parents}):
            yield f"children/{parent[:2]}/{parent}.{digest}.{record}"

    def load(self, version: Version) -> Artifact:
        """The artifact of a reference's entry.

        Raises:
            CorruptArtifactError: its manifest is missing or altered.
        """
        stored = self._backend.get(manifest_key(version.digest, version.record))
        return self._read(stored, version.digest, version.record, version.version)

    def with_digest(self, prefix: str) -> list[Artifact]:
        """Visible artifacts whose digest begins with ``prefix`` (two or more hex digits), oldest first."""
        keys = self._backend.list(f"manifests/{prefix[:2]}/{prefix}")
        return self._visible(key.removesuffix(_SUFFIX) for key in keys)

    def with_file(self, sha256: str) -> list[Artifact]:
        """Visible artifacts that hold a file with this SHA-256, oldest first."""
        return self._visible(self._backend.list(f"uses/{sha256[:2]}/{sha256}."))

    def with_parents(self, digests: Sequence[str]) -> list[Artifact]:
        """Visible artifacts made from an artifact with one of these digests, each once, oldest first."""

        def children(digest: str) -> list[str]:
            return list(self._backend.list(f"children/{digest[:2]}/{digest}."))

        return self._visible(key for keys in at_once(children, sorted(set(digests))) for key in keys)

    def _visible(self, keys: Iterable[str]) -> list[Artifact]:
        records = sorted({tuple(key.rpartition("/")[2].split(".")[-2:]) for key in keys})
        documents = at_once(lambda record: self._backend.get(manifest_key(*record)), records)
        pairs = zip(records, documents, strict=True)
        written = [self._read(stored, digest, record) for (digest, record), stored in pairs if stored is not None]
        names = sorted({artifact.name for artifact in written})
        references = dict(zip(names, at_once(self._references.read, names), strict=True))
        found = []
        for artifact in written:
            reference = references[artifact.name]
            version = reference.holding(artifact.record) if reference else None
            if version is not None:
                found.append(replace(artifact, version=version.version))
        return sorted(found, key=lambda artifact: (artifact.created_at, artifact.ref))

    def _read(self, stored: Stored | None, digest: str, record: str, version: int = 0) -> Artifact:
        if stored is None or record_id(stored.data) != record:
            key, state = manifest_key(digest, record), "missing" if stored is None else "altered"
            raise CorruptArtifactError(f"manifest {key} in {self._backend.url} is {state}; restore it from a backup")
        return parse_manifest(stored.data, version=version, record=record)


def record_id(document: bytes) -> str:
    """The id of a manifest document: the first 32 hex digits of its SHA-256."""
    return hashlib.sha256(document).hexdigest()[:_RECORD_DIGITS]


def manifest_key(digest: str, record: str) -> str:
    """Where the manifest document is kept."""
    return f"manifests/{digest[:2]}/{digest}.{record}{_SUFFIX}"
