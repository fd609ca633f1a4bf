"""Names: which versions they have and where their aliases point.

One mutable document per name, changed only by compare-and-swap; a version that is not in it does not
exist for any reader. This is the single commit point of a publication.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from relax_engine.lineage.backend import Backend
from relax_engine.lineage.errors import StoreTimeoutError
from relax_engine.lineage.manifest import canonical_json, check_schema, parse_version

REFERENCE_SCHEMA = 2  # 1 had no moves
_SWAP_DEADLINE_S = 120.0
_FOLDER = "refs/"


@dataclass(frozen=True, slots=True)
class Version:
    """One entry of a name: its number, the content digest, the manifest record and the parents' digests (sorted)."""

    version: int
    digest: str
    record: str
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """An alias was pointed at a version; ``back`` if that took back the move before it.

    ``at`` is the time in ISO 8601 and UTC, or ``unknown`` for a move that an older release made.
    """

    alias: str
    version: int
    at: str
    back: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """The state of one name: ``versions`` and ``moves`` are append-only, ``aliases`` maps alias -> version number."""

    name: str
    kind: str
    versions: tuple[Version, ...] = ()
    aliases: tuple[tuple[str, int], ...] = ()
    moves: tuple[Move, ...] = ()

    def find(self, digest: str, parents: tuple[str, ...]) -> Version | None:
        """The version with this content made from these parents."""
        return next((v for v in self.versions if v.digest == digest and v.parents == parents), None)

    def holding(self, record: str) -> Version | None:
        """The version whose manifest is ``record``; None when that publication never finished."""
        return next((v for v in self.versions if v.record == record), None)

    def at(self, selector: str) -> Version | None:
        """``vN``, ``latest`` (the highest version) or an alias."""
        number = parse_version(selector) or dict(self.aliases).get(selector)
        if selector == "latest":
            return self.versions[-1] if self.versions else None
        return next((v for v in self.versions if v.version == number), None)

    def appended(self, digest: str, record: str, parents: tuple[str, ...]) -> Reference:
        """With one more version."""
        return replace(self, versions=(*self.versions, Version(len(self.versions) + 1, digest, record, parents)))

    def pointing(self, alias: str, version: int, *, back: bool = False) -> Reference:
        """With ``alias`` moved to ``version``; the same state if it is there already."""
        if dict(self.aliases).get(alias) == version:
            return self
        aliases = tuple(sorted({**dict(self.aliases), alias: version}.items()))
        move = Move(alias, version, datetime.now(UTC).isoformat(timespec="seconds"), back)
        return replace(self, aliases=aliases, moves=(*self.moves, move))

    def before(self, alias: str) -> int | None:
        """The version that ``alias`` pointed at before its last move that was not taken back."""
        held: list[int] = []
        for move in self.moves:
            if move.alias != alias:
                continue
            if move.back:
                held.pop()
            else:
                held.append(move.version)
        return held[-2] if len(held) > 1 else None


class ReferenceTable:
    """All names of a store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def names(self) -> Iterator[str]:
        """Every name that has been published, sorted, by listing all references."""
        for key in self._backend.list(_FOLDER):
            yield key.removeprefix(_FOLDER).removesuffix(".json")

    def read(self, name: str) -> Reference | None:
        """The name's present state, or None for an unknown name."""
        stored = self._backend.get(_key(name))
        return _parse(stored.data) if stored else None

    def update(self, name: str, change: Callable[[Reference | None], Reference]) -> Reference:
        """Apply ``change`` to the newest state until no other writer came between; returns the state that holds.

        ``change`` may run several times; returning its argument unchanged ends the update without a write.

        Raises:
            StoreTimeoutError: other writers won for longer than the deadline.
        """
        deadline = time.monotonic() + _SWAP_DEADLINE_S
        pause = 0.001
        while True:
            stored = self._backend.get(_key(name))
            before = _parse(stored.data) if stored else None
            after = change(before)
            if after == before:
                return after
            token = stored.token if stored else None
            if self._backend.compare_and_swap(_key(name), _serialise(after), token):
                return after
            if time.monotonic() > deadline:
                raise StoreTimeoutError(
                    f"could not update the reference {name!r} within {_SWAP_DEADLINE_S:.0f} s: "
                    "other writers kept changing it; publish again when they have finished"
                )
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, 0.25)


def _key(name: str) -> str:
    return f"{_FOLDER}{name}.json"


def _serialise(reference: Reference) -> bytes:
    document = {
        "schema": REFERENCE_SCHEMA,
        "name": reference.name,
        "kind": reference.kind,
        "versions": [asdict(version) for version in reference.versions],
        "aliases": dict(reference.aliases),
        "moves": [asdict(move) for move in reference.moves],
    }
    return canonical_json(document)


def _parse(data: bytes) -> Reference:
    value = json.loads(data)
    if value.get("schema") == 1:
        known = [{"alias": alias, "version": number, "at": "unknown"} for alias, number in value["aliases"].items()]
        value |= {"schema": REFERENCE_SCHEMA, "moves": known}
    check_schema(value, REFERENCE_SCHEMA, f"reference {value.get('name')!r}")
    versions = tuple(Version(v["version"], v["digest"], v["record"], tuple(v["parents"])) for v in value["versions"])
    moves = tuple(Move(**move) for move in value["moves"])
    return Reference(value["name"], value["kind"], versions, tuple(sorted(value["aliases"].items())), moves)
