import os
from pathlib import Path

import pytest

from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.errors import (
    ArtifactNotFoundError,
    InvalidNameError,
    SourceChangedError,
    StoreSchemaError,
    StoreUrlError,
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_identical_content_and_parents_under_one_name_is_one_version(store: ArtifactStore, tmp_path: Path):
    first = store.publish(write(tmp_path / "a", "x"), kind="dataset", name="raw", metrics={"rows": 1})
    again = store.publish(tmp_path / "a", kind="dataset", name="raw", metrics={"rows": 2})
    assert again == first
    assert again.metrics == {"rows": 1.0}
    second = store.publish(write(tmp_path / "a", "y"), kind="dataset", name="raw")
    assert (first.ref, second.ref) == ("raw@v1", "raw@v2")


def test_same_bytes_from_other_parents_are_a_new_version_with_the_same_digest(store: ArtifactStore, tmp_path: Path):
    models = [store.publish(write(tmp_path / m, m), kind="model", name=m) for m in ("m1", "m2")]
    report = write(tmp_path / "report.json", '{"accuracy": 0.5}')
    one, two = (store.publish(report, kind="evaluation", name="eval", parents=[m]) for m in models)
    assert (one.version, two.version) == (1, 2)
    assert one.digest == two.digest
    assert [a.ref for a in store.ancestors(two)] == ["m2@v1"]
    assert [a.ref for a in store.descendants(models[0])] == ["eval@v1"]


def test_digest_does_not_depend_on_mtime_creation_order_or_links(store: ArtifactStore, tmp_path: Path):
    write(tmp_path / "one/b/2", "two")
    write(tmp_path / "one/a", "one")
    write(tmp_path / "two/a", "one")
    os.utime(tmp_path / "two/a", (1, 1))
    (tmp_path / "two/b").symlink_to(tmp_path / "one/b", target_is_directory=True)
    one = store.publish(tmp_path / "one", kind="dataset", name="one")
    two = store.publish(tmp_path / "two", kind="dataset", name="two")
    assert one.digest == two.digest
    assert [f.path for f in two.files] == ["a", "b/2"]


def test_manifest_records_producer_and_round_trips(store: ArtifactStore, tmp_path: Path):
    artifact = store.publish(
        write(tmp_path / "m", "m"), kind="model", name="m", config_digest="c0ffee", metadata={"note": ["ä", 1]}
    )
    read = store.resolve("m@v1")
    assert read == artifact
    assert read.metadata == {"note": ["ä", 1]}
    assert read.producer["config_digest"] == "c0ffee"
    assert len(read.producer["packages_digest"]) == 64
    assert read.producer["host"]["cpus"] == os.cpu_count()
    assert set(read.producer) == {"git_commit", "git_dirty", "config_digest", "packages_digest", "host"}


def test_a_name_keeps_its_kind(store: ArtifactStore, tmp_path: Path):
    store.publish(write(tmp_path / "m", "m"), kind="model", name="tiny")
    with pytest.raises(InvalidNameError, match="'tiny': that name holds artifacts of kind model"):
        store.publish(tmp_path / "m", kind="checkpoint", name="tiny")


def test_bad_input_publishes_nothing(store: ArtifactStore, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "dangling/ok", "ok")
    (tmp_path / "dangling/gone").symlink_to(tmp_path / "nowhere")
    write(tmp_path / "cycle/ok", "ok")
    (tmp_path / "cycle/back").symlink_to(tmp_path / "cycle", target_is_directory=True)
    ok = write(tmp_path / "ok", "ok")
    with pytest.raises(InvalidNameError, match="holds no file"):
        store.publish(tmp_path / "empty", kind="model", name="n")
    with pytest.raises(FileNotFoundError, match="nowhere, which is missing"):
        store.publish(tmp_path / "dangling", kind="model", name="n")
    with pytest.raises(InvalidNameError, match="form a cycle"):
        store.publish(tmp_path / "cycle", kind="model", name="n")
    with pytest.raises(FileNotFoundError, match="no such file"):
        store.publish(tmp_path / "absent", kind="model", name="n")
    with pytest.raises(InvalidNameError, match="unknown artifact kind 'weights'"):
        store.publish(ok, kind="weights", name="n")
    with pytest.raises(ArtifactNotFoundError, match="no artifact answers to 'ghost@v1'"):
        store.publish(ok, kind="model", name="n", parents=["ghost@v1"])
    with pytest.raises(ValueError, match="metric 'loss' is nan"):
        store.publish(ok, kind="model", name="n", metrics={"loss": float("nan")})
    assert list(store.names()) == []


def test_parent_of_another_store_is_refused(store: ArtifactStore, tmp_path: Path):
    other = ArtifactStore.open(str(tmp_path / "other"))
    here = store.publish(write(tmp_path / "a", "here"), kind="dataset", name="d")
    there = other.publish(write(tmp_path / "b", "there"), kind="dataset", name="d")
    assert here.ref == there.ref
    with pytest.raises(ArtifactNotFoundError, match="belongs to another store"):
        store.publish(tmp_path / "b", kind="model", name="m", parents=[there])


def test_a_file_that_changes_between_hashing_and_copying_is_refused(store: ArtifactStore, tmp_path: Path):
    source = write(tmp_path / "a", "after")
    with pytest.raises(SourceChangedError, match="changed while it was being published"):
        store._backend.upload(source, "blobs/00/" + "00" * 32, "00" * 32)
    assert list(store._backend.list("blobs/00/")) == []


def test_opening_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = tmp_path / "store"
    with pytest.raises(StoreUrlError, match="no artifact store at"):
        ArtifactStore.open(str(root), create=False)
    assert not root.exists()
    with pytest.raises(StoreUrlError, match="scheme 'gopher' has no backend"):
        ArtifactStore.open("gopher://bucket/prefix")
    first = ArtifactStore.open(root.as_uri())
    monkeypatch.setenv("RELAX_ARTIFACTS", str(root))
    assert ArtifactStore.open().store_id == first.store_id
    (root / "store.json").write_text('{"schema": 2, "store_id": "x"}')
    with pytest.raises(StoreSchemaError, match="schema 2; this release reads schema 1"):
        ArtifactStore.open(str(root))
