import json
from pathlib import Path

import pytest

from relax_engine.lineage import Artifact, ArtifactStore
from relax_engine.lineage.errors import AliasConflictError, AmbiguousReferenceError, ArtifactNotFoundError


def publish(store: ArtifactStore, folder: Path, name: str, text: str, kind: str = "model", parents=()) -> Artifact:
    path = folder / "weights.bin"
    path.write_text(text)
    return store.publish(path, kind=kind, name=name, parents=parents)


def test_every_form_of_reference(store: ArtifactStore, tmp_path: Path):
    one = publish(store, tmp_path, "tiny", "1")
    two = publish(store, tmp_path, "tiny", "2")
    store.tag("tiny", "production", one.digest)
    for ref in ("tiny@v1", "tiny@production", "model/tiny@v1", one.digest, one.digest[:8], f"sha256:{one.digest}"):
        assert store.resolve(ref) == one, ref
    for ref in ("tiny", "tiny@latest", "model/tiny", str(tmp_path / "weights.bin")):
        assert store.resolve(ref) == two, ref
    assert store.aliases("tiny") == {"production": 1, "latest": 2}


def test_a_copied_file_of_a_directory_and_the_directory_itself_are_found_by_content(store, tmp_path: Path):
    model = tmp_path / "export"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub/weights.bin").write_text("w")
    artifact = store.publish(model, kind="model", name="tiny")
    copied = tmp_path / "renamed.bin"
    copied.write_text("w")
    assert store.holders(copied) == [artifact]
    assert store.resolve(str(model)) == artifact
    copied.write_text("x")
    with pytest.raises(ArtifactNotFoundError, match=r"holds the content of .*renamed\.bin"):
        store.resolve(str(copied))


def test_what_is_missing_says_what_there_is(store: ArtifactStore, tmp_path: Path):
    publish(store, tmp_path, "tiny-math", "1")
    with pytest.raises(ArtifactNotFoundError, match=r"no version or alias 'v3'; it has v1\.\.v1, latest"):
        store.resolve("tiny-math@v3")
    with pytest.raises(ArtifactNotFoundError, match="did you mean tiny-math"):
        store.resolve("tinymath")
    with pytest.raises(ArtifactNotFoundError, match="'tiny-math': that name holds artifacts of kind model"):
        store.resolve("dataset/tiny-math")


def test_ambiguous_prefix_lists_the_candidates(store: ArtifactStore, tmp_path: Path, monkeypatch):
    digests = iter(["abcdef" + "0" * 58, "abcdef" + "1" * 58])
    monkeypatch.setattr("relax_engine.lineage.store.artifact_digest", lambda *_: next(digests))
    publish(store, tmp_path, "one", "1")
    publish(store, tmp_path, "two", "2")
    with pytest.raises(AmbiguousReferenceError, match=r"'abcdef' is ambiguous.*abcdef000.*one@v1.*abcdef111.*two@v1"):
        store.resolve("abcdef")
    assert store.resolve("abcdef1").ref == "two@v1"


def test_walks_visit_a_diamond_once_and_nearest_first(store: ArtifactStore, tmp_path: Path):
    raw = publish(store, tmp_path, "raw", "raw", kind="dataset")
    left = publish(store, tmp_path, "left", "left", kind="dataset", parents=[raw])
    right = publish(store, tmp_path, "right", "right", kind="dataset", parents=["raw"])
    model = publish(store, tmp_path, "model", "model", parents=[left, right])
    assert [a.ref for a in store.ancestors(model)] == ["left@v1", "right@v1", "raw@v1"]
    assert [a.ref for a in store.descendants("raw")] == ["left@v1", "right@v1", "model@v1"]
    assert store.ancestors(raw) == []
    assert store.descendants(model) == []


def test_tag_with_an_expectation_is_a_compare_and_swap(store: ArtifactStore, tmp_path: Path):
    one = publish(store, tmp_path, "tiny", "1")
    two = publish(store, tmp_path, "tiny", "2")
    assert store.tag("tiny", "production", one, expected=None) == one
    with pytest.raises(AliasConflictError, match="points to tiny@v1, not to nothing"):
        store.tag("tiny", "production", two, expected=None)
    assert store.tag("tiny", "production", two, expected="tiny@v1") == two
    other = publish(store, tmp_path, "other", "3")
    with pytest.raises(ArtifactNotFoundError, match="other@v1 is not a version of 'tiny'"):
        store.tag("tiny", "production", other)
    assert store.resolve("tiny@production") == two


def test_an_alias_goes_back_the_way_it_came(store: ArtifactStore, tmp_path: Path):
    one, two, three = (publish(store, tmp_path, "tiny", text) for text in "123")
    for version in (one, two, two, three):
        store.tag("tiny", "production", version)
    store.tag("tiny", "other", one)
    assert store.rollback("tiny", "production") == two
    assert store.rollback("tiny", "production") == one
    with pytest.raises(ArtifactNotFoundError, match="tiny@production cannot go back"):
        store.rollback("tiny", "production")
    assert store.tag("tiny", "production", three) == three
    assert store.rollback("tiny", "production") == one
    assert [(move.version, move.back) for move in store.moves("tiny") if move.alias == "production"] == [
        (1, False),
        (2, False),
        (3, False),
        (2, True),
        (1, True),
        (3, False),
        (1, True),
    ]


def test_aliases_of_an_older_release_go_back_to_where_they_were(store: ArtifactStore, tmp_path: Path):
    one, two = (publish(store, tmp_path, "tiny", text) for text in "12")
    store.tag("tiny", "production", one)
    path = tmp_path / "store" / "refs" / "tiny.json"
    document = json.loads(path.read_text())
    del document["moves"]
    path.write_text(json.dumps({**document, "schema": 1}))
    store.tag("tiny", "production", two)
    assert store.rollback("tiny", "production") == one


def test_names_of_a_kind_are_right_without_declarations_and_with_two(store: ArtifactStore, tmp_path: Path):
    for name, kind in (("a", "dataset"), ("b", "model"), ("c", "dataset")):
        (tmp_path / name).write_text(name)
        store.publish(tmp_path / name, kind=kind, name=name)
    kinds = tmp_path / "store" / "kinds"
    (kinds / "dataset" / "a").unlink()  # as in a store of an older release
    (kinds / "model" / "c").touch()  # as another first writer had declared it, and lost
    assert list(store.names("dataset")) == ["a", "c"]
    assert list(store.names("model")) == ["b"]
    assert [(newest.ref, aliases) for newest, aliases in store.newest("dataset")] == [
        ("a@v1", {"latest": 1}),
        ("c@v1", {"latest": 1}),
    ]
    assert store.collect_garbage(grace_s=-1).removed == ["kinds/model/c"]
