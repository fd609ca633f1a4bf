"""What an artifact is: its files, its identity, and the manifest that describes it.

Identity. The digest is SHA-256 of the canonical *core*: kind, layout and the sorted list of
``{path, sha256, size}``, as JSON with sorted keys and no spaces. Names, times, producers, parents and
metrics stay outside, so the same bytes produced twice are the same artifact wherever and whenever.
Where manifests are stored and how they become visible is ``store.py``'s matter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from relax_engine.lineage.errors import InvalidNameError, StoreSchemaError

MANIFEST_SCHEMA = 1
SHORT_DIGEST = 12

Kind = Literal["dataset", "checkpoint", "run", "evaluation", "model"]
Layout = Literal["file", "directory"]
KINDS: tuple[str, ...] = get_args(Kind)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"v([1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an artifact: relative POSIX path, SHA-256 of its bytes (hex), size in bytes."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class ParentLink:
    """An artifact this one was made from: ``name@vN`` and the digest it had."""

    ref: str
    digest: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """One published, immutable version of a name.

    ``version`` counts from 1 within ``name``. ``producer`` holds git commit and dirtiness, config digest,
    package-lock digest and host facts (``producer.py``). ``created_at`` is ISO 8601 in UTC. ``record`` is
    the hash of the manifest document itself, which tells apart two publications of the same bytes.
    """

    digest: str
    kind: str
    name: str
    version: int
    layout: str
    files: tuple[FileEntry, ...]
    created_at: str
    parents: tuple[ParentLink, ...] = ()
    producer: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    record: str = ""

    @property
    def ref(self) -> str:
        """``name@vN``, which never changes its meaning."""
        return f"{self.name}@v{self.version}"

    @property
    def short_digest(self) -> str:
        """The digest's first twelve hex digits, for display."""
        return self.digest[:SHORT_DIGEST]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of all fields plus ``ref``; what ``--json`` prints."""
        return {**asdict(self), "ref": self.ref}


def artifact_digest(kind: str, layout: str, files: Iterable[FileEntry]) -> str:
    """SHA-256 (hex) of the canonical core. The order in which ``files`` come does not matter."""
    core = {"kind": kind, "layout": layout, "files": sorted((asdict(f) for f in files), key=lambda f: f["path"])}
    return hashlib.sha256(canonical_json(core)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys, no spaces and no NaN, so that equal values are equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def manifest_bytes(
    *,
    digest: str,
    kind: str,
    name: str,
    layout: str,
    files: Iterable[FileEntry],
    parents: Iterable[ParentLink],
    producer: Mapping[str, Any],
    created_at: str,
    metrics: Mapping[str, float],
    metadata: Mapping[str, Any],
) -> bytes:
    """The manifest document. The version is not in it: the reference of ``name`` assigns that at the end."""
    return canonical_json(
        {
            "schema": MANIFEST_SCHEMA,
            "digest": digest,
            "kind": kind,
            "name": name,
            "layout": layout,
            "files": [asdict(entry) for entry in files],
            "parents": [asdict(link) for link in parents],
            "producer": dict(producer),
            "created_at": created_at,
            "metrics": dict(metrics),
            "metadata": dict(metadata),
        }
    )


def parse_manifest(document: bytes, *, version: int, record: str) -> Artifact:
    """Read a manifest document back as the given version of its name.

    Raises:
        StoreSchemaError: written by a newer release.
    """
    value = json.loads(document)
    check_schema(value, MANIFEST_SCHEMA, f"manifest {record}")
    return Artifact(
        digest=value["digest"],
        kind=value["kind"],
        name=value["name"],
        version=version,
        layout=value["layout"],
        files=tuple(FileEntry(**entry) for entry in value["files"]),
        created_at=value["created_at"],
        parents=tuple(ParentLink(**link) for link in value["parents"]),
        producer=value["producer"],
        metrics=value["metrics"],
        metadata=value["metadata"],
        record=record,
    )


def check_schema(document: Mapping[str, Any], known: int, what: str) -> None:
    """Refuse a document whose ``schema`` is not ``known``."""
    if document.get("schema") != known:
        raise StoreSchemaError(
            f"{what} has schema {document.get('schema')!r}; this release reads schema {known}. "
            "Use the release that wrote it, or a newer one."
        )


def check_kind(kind: str) -> None:
    """Refuse a kind outside ``KINDS``."""
    if kind not in KINDS:
        raise InvalidNameError(f"unknown artifact kind {kind!r}; one of {', '.join(KINDS)}")


def check_name(name: str) -> None:
    """Refuse a name that could not be told from a path, a version or a flag."""
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"artifact name {name!r} is not allowed: use 1 to 128 letters, digits, '.', '_', '-', "
            "beginning with a letter or digit"
        )


def check_alias(alias: str) -> None:
    """Refuse an alias that is a version, or ``latest``, which always means the highest version."""
    if not _NAME.fullmatch(alias) or _VERSION.fullmatch(alias) or alias == "latest":
        raise InvalidNameError(
            f"alias {alias!r} is not allowed: 'latest' and v1, v2, ... are given by the store; "
            "use letters, digits, '.', '_', '-', such as 'production'"
        )


def parse_version(text: str) -> int | None:
    """``"v3"`` -> 3; anything else -> None."""
    match = _VERSION.fullmatch(text)
    return int(match.group(1)) if match else None
