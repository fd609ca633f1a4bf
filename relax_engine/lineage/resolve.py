"""From what a person writes to an artifact: names, versions, aliases, digest prefixes, paths."""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Sequence
from pathlib import Path

from relax_engine.lineage.errors import AmbiguousReferenceError, ArtifactNotFoundError
from relax_engine.lineage.hashing import list_files, sha256_file
from relax_engine.lineage.manifest import KINDS, Artifact, FileEntry, artifact_digest
from relax_engine.lineage.names import NameTable
from relax_engine.lineage.records import ManifestTable
from relax_engine.lineage.refs import ReferenceTable

MIN_PREFIX = 6
_COMPARED = 64
"""Names that are compared letter by letter with one that does not exist: those that share most pieces with it."""
_HEX = re.compile(rf"(?:sha256:)?([0-9a-f]{{{MIN_PREFIX},64}})")


class Resolver:
    """Reference strings, tried in this order: name (``[kind/]name[@vN|@alias]``), digest prefix, path."""

    def __init__(self, references: ReferenceTable, manifests: ManifestTable, names: NameTable) -> None:
        self._references = references
        self._manifests = manifests
        self._names = names

    def resolve(self, ref: str) -> Artifact:
        """The artifact ``ref`` stands for.

        Raises:
            ArtifactNotFoundError: nothing answers; names close matches or the existing versions.
            AmbiguousReferenceError: a digest prefix of several artifacts; lists them.
        """
        return self._by_name(ref) or self._by_digest(ref) or self._by_path(ref) or self._nothing(ref)

    def holders(self, path: Path) -> list[Artifact]:
        """Artifacts that hold this file, or are this directory, by content; oldest first."""
        if path.is_file():
            return self._manifests.with_file(sha256_file(path))
        files = [FileEntry(name, sha256_file(source), source.stat().st_size) for name, source in list_files(path)]
        found = []
        for kind in KINDS:
            found += self._manifests.with_digest(artifact_digest(kind, "directory", files))
        return found

    def _by_name(self, ref: str) -> Artifact | None:
        head, _, selector = ref.partition("@")
        kind, slash, name = head.rpartition("/")
        if slash and kind not in KINDS:
            return None
        reference = self._references.read(name) if name and "/" not in name else None
        if reference is None:
            return None
        if slash and reference.kind != kind:
            raise ArtifactNotFoundError(
                f"no {kind} is named {name!r}: that name holds artifacts of kind {reference.kind}"
            )
        version = reference.at(selector or "latest")
        if version is None:
            known = [f"v1..v{len(reference.versions)}", "latest", *(alias for alias, _ in reference.aliases)]
            raise ArtifactNotFoundError(f"{name!r} has no version or alias {selector!r}; it has {', '.join(known)}")
        return self._manifests.load(version)

    def _by_digest(self, ref: str) -> Artifact | None:
        match = _HEX.fullmatch(ref)
        found = self._manifests.with_digest(match.group(1)) if match else []
        if len({artifact.digest for artifact in found}) > 1:
            listing = "; ".join(f"{a.digest} ({a.kind} {a.ref})" for a in found)
            raise AmbiguousReferenceError(f"digest prefix {ref!r} is ambiguous, give more digits: {listing}")
        return found[0] if found else None

    def _by_path(self, ref: str) -> Artifact | None:
        path = Path(ref)
        if not path.exists():
            return None
        found = self.holders(path)
        if not found:
            raise ArtifactNotFoundError(f"no artifact in the store holds the content of {ref}")
        return found[0]

    def _nothing(self, ref: str) -> Artifact:
        near = _close(ref.partition("@")[0], self._names.names())
        hint = f"did you mean {', '.join(near)}?" if near else "`relax lineage list` shows what there is"
        raise ArtifactNotFoundError(
            f"no artifact answers to {ref!r} (tried name, digest prefix of {MIN_PREFIX}+ digits, path); {hint}"
        )


def _close(wanted: str, names: Sequence[str]) -> list[str]:
    """At most three names that look like `wanted`, the likest first."""
    pieces = {wanted[index : index + 2] for index in range(len(wanted) - 1)}
    candidates = heapq.nlargest(_COMPARED, names, key=lambda name: sum(map(name.__contains__, pieces)))
    return difflib.get_close_matches(wanted, candidates, n=3)
