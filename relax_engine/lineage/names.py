"""Which names there are and what kind each holds: a compacted list, and the marks of names that it does not have yet.

A name exists if and only if its reference does (`refs.py`), and keeps its kind for ever; so what this list says of a
name stays true, and two lists are merged by their union. ``names.json`` holds it; an empty object
``kinds/<kind>/<name>``, the mark, is written before a name's reference and removed once the list has the name. What
must hold at every moment, for any number of writers and whenever they are killed:

    every name that has a reference is in the list, or has a mark, or there is no list yet.

A reader takes the marks first and the list second, since a name moves from the marks to the list. Marks of names
without a reference, of a publication that goes on or was killed, are passed over.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping

from relax_engine.lineage.backend import Backend, at_once
from relax_engine.lineage.manifest import canonical_json, check_schema
from relax_engine.lineage.refs import ReferenceTable

NAMES_KEY = "names.json"
NAMES_SCHEMA = 1
MARKS_FOLDER = "kinds/"
FOLD = 16
"""Marks at which the writer of a new name brings the list up to date: a reader asks for their references, at once."""


class NameTable:
    """All names of a store by kind."""

    def __init__(self, backend: Backend, references: ReferenceTable) -> None:
        self._backend = backend
        self._references = references

    def names(self, kind: str | None = None) -> list[str]:
        """Published names, sorted; of one kind when given. A few requests, however many there are."""
        marks = list(self._backend.list(f"{MARKS_FOLDER}{kind}/" if kind else MARKS_FOLDER))
        known, _ = self._known()
        found = self._with_new(known, marks)
        return sorted(name for name, of in found.items() if kind in (None, of))

    def declare(self, name: str, kind: str) -> None:
        """Mark a name whose first version is about to be committed; renewed, so that no collection takes the mark."""
        if not self._backend.put_if_absent(mark_key(name, kind), b""):
            with contextlib.suppress(FileNotFoundError):
                self._backend.renew(mark_key(name, kind))

    def committed(self, name: str, kind: str) -> None:
        """The name's first version is there: look again for its mark, and bring the list up to date when it is time."""
        self._backend.put_if_absent(mark_key(name, kind), b"")
        marks = list(self._backend.list(MARKS_FOLDER))
        if len(marks) >= FOLD:
            self._fold(marks)

    def _fold(self, marks: list[str]) -> None:
        """Take the marked names into the list, then their marks away. A writer that comes second leaves it at that."""
        known, token = self._known()
        found = self._with_new(known, marks)
        if found != known and not self._backend.compare_and_swap(NAMES_KEY, serialise(found), token):
            return
        at_once(self._backend.remove, [mark for mark in marks if _name(mark) in found])

    def _known(self) -> tuple[dict[str, str] | None, str | None]:
        """The list as name -> kind, and its token; None before it is written for the first time."""
        stored = self._backend.get(NAMES_KEY)
        return (_parse(stored.data), stored.token) if stored else (None, None)

    def _with_new(self, known: Mapping[str, str] | None, marks: Iterable[str]) -> dict[str, str]:
        """The list with the names that it does not have; without a list, all names as their references say."""
        listed = map(_name, marks) if known is not None else self._references.names()
        known = known or {}
        references = at_once(self._references.read, sorted({name for name in listed if name not in known}))
        return {**known, **{reference.name: reference.kind for reference in references if reference}}


def mark_key(name: str, kind: str) -> str:
    """Where the mark of a name lies that holds `kind`."""
    return f"{MARKS_FOLDER}{kind}/{name}"


def serialise(kinds: Mapping[str, str]) -> bytes:
    """The list (name -> kind) as the document that is stored."""
    by_kind: dict[str, list[str]] = {}
    for name in sorted(kinds):
        by_kind.setdefault(kinds[name], []).append(name)
    return canonical_json({"schema": NAMES_SCHEMA, "names": by_kind})


def _parse(data: bytes) -> dict[str, str]:
    document = json.loads(data)
    check_schema(document, NAMES_SCHEMA, "the list of names")
    known: dict[str, str] = {}
    for kind, names in document["names"].items():
        known.update(dict.fromkeys(names, kind))
    return known


def _name(mark: str) -> str:
    return mark.rpartition("/")[2]
