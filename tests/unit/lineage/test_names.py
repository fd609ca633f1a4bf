"""The list of names and what is newer than it: right at every moment at which a writer can stop, and short to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relax_engine.lineage import ArtifactStore, names
from relax_engine.lineage.local import LocalBackend
from relax_engine.lineage.names import NAMES_KEY, NameTable, mark_key, serialise
from relax_engine.lineage.refs import Reference, ReferenceTable

KINDS = ("dataset", "model", "run")


class Stopped(Exception):
    """The writer was killed here."""


class Stopping(LocalBackend):
    """A backend of a writer that is killed before its n-th change of the store."""

    changes = 0
    last = 10**9

    def _count(self) -> None:
        self.changes += 1
        if self.changes > self.last:
            raise Stopped

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._count()
        return super().put_if_absent(key, data)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> bool:
        self._count()
        return super().compare_and_swap(key, data, expected)

    def renew(self, key: str) -> None:
        self._count()
        super().renew(key)

    def remove(self, key: str) -> None:
        self._count()
        super().remove(key)


class Counting(LocalBackend):
    """A backend that counts what is read."""

    reads = 0

    def get(self, key: str) -> Any:
        self.reads += 1
        return super().get(key)

    def list(self, prefix: str) -> Iterator[str]:
        self.reads += 1
        return super().list(prefix)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "FOLD", 4)


def commit(backend: LocalBackend, name: str, kind: str) -> None:
    """What a publication does for the first version of a name."""
    references = ReferenceTable(backend)
    table = NameTable(backend, references)
    if references.read(name) is None:
        table.declare(name, kind)
        references.update(name, lambda found: found or Reference(name, kind).appended("d", "r", ()))
        table.committed(name, kind)


def table(backend: LocalBackend) -> NameTable:
    return NameTable(backend, ReferenceTable(backend))


def test_whatever_killed_writers_left_the_names_are_those_that_have_references(tmp_path: Path) -> None:
    """Writers of one name each: every third lives, the others die before their first, second, third ... change."""
    backend = LocalBackend(tmp_path, create=True)
    died_after = set()
    for number in range(60):
        writer = Stopping(tmp_path, create=True)
        writer.last = 1000 if number % 3 == 0 else number % 16
        try:
            commit(writer, f"n{number}", KINDS[number % 7 % 3])
        except Stopped:
            died_after.add(writer.last)
        exist = {f"n{i}": KINDS[i % 7 % 3] for i in range(60) if backend.exists(f"refs/n{i}.json")}
        for of in KINDS:
            assert table(backend).names(of) == sorted(name for name in exist if exist[name] == of)
        assert table(backend).names() == sorted(exist)
    assert died_after >= set(range(5))  # mark, reference, mark again, list, and marks that go
    for number in range(4):
        commit(backend, f"last{number}", "run")
    marks = [mark.rpartition("/")[2] for mark in backend.list("kinds/")]
    assert [name for name in marks if backend.exists(f"refs/{name}.json")] == []
    assert len(table(backend).names()) == len(exist) + 4


def test_two_writers_of_one_name_and_two_kinds_leave_it_with_the_first_ones(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, create=True)
    table(backend).declare("x", "model")
    commit(backend, "x", "dataset")
    assert (table(backend).names("dataset"), table(backend).names("model")) == (["x"], [])
    for number in range(4):
        commit(backend, f"n{number}", "run")
    assert (table(backend).names("dataset"), table(backend).names("model")) == (["x"], [])
    assert not backend.exists(mark_key("x", "model"))


def test_a_list_that_another_writer_changed_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, create=True)

    class Slow(LocalBackend):
        def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> bool:
            if key == NAMES_KEY:
                for number in range(4):
                    commit(backend, f"fast{number}", "run")
            return super().compare_and_swap(key, data, expected)

    for number in range(4):
        commit(Slow(tmp_path, create=True), f"slow{number}", "model")
    assert table(backend).names("run") == [f"fast{number}" for number in range(4)]
    assert table(backend).names("model") == [f"slow{number}" for number in range(4)]


def test_reading_takes_two_requests_and_one_for_each_new_name(tmp_path: Path) -> None:
    writer, reader = LocalBackend(tmp_path, create=True), Counting(tmp_path, create=True)
    many = {f"n{number}": "model" for number in range(5000)}
    writer.compare_and_swap(NAMES_KEY, serialise(many), None)
    assert len(table(reader).names("model")) == 5000
    assert reader.reads == 2
    commit(writer, "new", "model")
    assert "new" in table(reader).names("model")
    assert reader.reads == 5


def test_a_store_without_a_list_or_marks_says_what_its_references_say(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for number in range(9):
        store.publish(tmp_path / "file", kind=KINDS[number % 3], name=f"n{number}")
    root = Path(store.url.removeprefix("file://"))
    assert store.names("run") == ["n2", "n5", "n8"]
    (root / NAMES_KEY).unlink()
    for mark in (root / "kinds").rglob("n*"):
        mark.unlink()
    assert store.names("run") == ["n2", "n5", "n8"]
    store.publish(tmp_path / "file", kind="run", name="n9")
    assert store.names("run") == ["n2", "n5", "n8", "n9"]
