"""What differs between two artifacts: their files, figures, producers, and the artifacts they were made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relax_engine.lineage.manifest import Artifact

Change = tuple[Any, Any]
"""A value on the left and on the right; None where one side has none."""


@dataclass(frozen=True, slots=True)
class ArtifactDiff:
    """Differences only; what is equal on both sides is left out.

    Attributes:
        left: Reference of the one, ``name@vN``.
        right: Reference of the other.
        files: Path -> SHA-256 on either side.
        metrics: Key -> figures.
        producer: Field (git commit, config digest, lock digest, host facts) -> values.
        metadata: Dotted key -> values.
        ancestors: ``kind name`` -> references with their digests, over everything both were made from.
    """

    left: str
    right: str
    files: dict[str, Change] = field(default_factory=dict)
    metrics: dict[str, Change] = field(default_factory=dict)
    producer: dict[str, Change] = field(default_factory=dict)
    metadata: dict[str, Change] = field(default_factory=dict)
    ancestors: dict[str, Change] = field(default_factory=dict)

    @property
    def same_content(self) -> bool:
        """True when both hold the same files."""
        return not self.files


def compare(left: Artifact, right: Artifact, ancestors: Callable[[Artifact], list[Artifact]]) -> ArtifactDiff:
    """The differences between two artifacts of one store.

    An ancestor of one side is compared with the ancestor of the same kind and name on the other; several of one
    name are compared as a list, nearest first.
    """
    return ArtifactDiff(
        left.ref,
        right.ref,
        files=_changes(*({entry.path: entry.sha256 for entry in side.files} for side in (left, right))),
        metrics=_changes(left.metrics, right.metrics),
        producer=_changes(_flatten(left.producer), _flatten(right.producer)),
        metadata=_changes(_flatten(left.metadata), _flatten(right.metadata)),
        ancestors=_changes(*(_by_name(ancestors(side)) for side in (left, right))),
    )


def _changes(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Change]:
    keys = [*left, *(key for key in right if key not in left)]
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


def _by_name(artifacts: list[Artifact]) -> dict[str, Any]:
    named: dict[str, list[str]] = {}
    for artifact in artifacts:
        named.setdefault(f"{artifact.kind} {artifact.name}", []).append(f"{artifact.ref} ({artifact.short_digest})")
    return {name: refs[0] if len(refs) == 1 else refs for name, refs in named.items()}


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= _flatten(item, f"{prefix}{key}.")
        else:
            flat[prefix + key] = item
    return flat
