import os
import time
from pathlib import Path

import pytest

from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.errors import SourceChangedError

DAY = 24 * 3600.0


def age(root: Path, seconds: float) -> None:
    """Make every object of a local store that much older."""
    then = time.time() - seconds
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def objects(root: Path) -> set[str]:
    folders = ("blobs", "uses", "children", "manifests", "kinds", "tmp")
    return {p.relative_to(root).as_posix() for f in folders for p in (root / f).rglob("*") if p.is_file()}


def publish(store: ArtifactStore, tmp_path: Path, text: str, **options: object):
    path = tmp_path / "source"
    path.write_text(text)
    return store.publish(path, kind="dataset", name="raw", **options)


def unreachable_copy(store: ArtifactStore, tmp_path: Path) -> None:
    """Leave all that a publication writes before its commit: publish, then take the reference back."""
    reference = Path(store.url.removeprefix("file://"), "refs/raw.json")
    before = reference.read_bytes()
    publish(store, tmp_path, "never committed", parents=["raw@v1"])
    reference.write_bytes(before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_only_what_no_name_reaches_goes(store: ArtifactStore, root: Path, tmp_path: Path):
    publish(store, tmp_path, "one")
    publish(store, tmp_path, "two", parents=["raw@v1"])
    kept = objects(root)
    unreachable_copy(store, tmp_path)
    (root / "tmp/half").write_bytes(b"half a blob")
    assert len(objects(root) - kept) == 5  # blob, manifest, use, child, temporary file
    age(root, 2 * DAY)

    planned = store.collect_garbage(dry_run=True)
    assert set(planned.removed) == objects(root) - kept
    done = store.collect_garbage()
    assert done.removed == planned.removed
    assert objects(root) == kept
    assert [problem for v in store.versions("raw") for problem in store.verify(v)] == []
    assert store.collect_garbage().removed == []


def test_the_grace_period_protects_publications_under_way(store: ArtifactStore, root: Path, tmp_path: Path):
    publish(store, tmp_path, "one")
    unreachable_copy(store, tmp_path)
    before = objects(root)
    assert store.collect_garbage(grace_s=60).removed == []
    assert objects(root) == before


def test_a_blob_that_is_used_again_is_young_again(store: ArtifactStore, root: Path, tmp_path: Path):
    publish(store, tmp_path, "one")
    unreachable_copy(store, tmp_path)
    age(root, 2 * DAY)
    # Fails before its commit, after it found the orphaned blob: the next collection must leave that alone.
    path = tmp_path / "pair"
    path.mkdir()
    (path / "a").write_text("never committed")
    (path / "b").symlink_to(tmp_path / "growing")
    (tmp_path / "growing").write_text("x")
    original = store._backend.upload

    def upload(source: Path, key: str, sha256: str) -> None:
        if source.name == "b":
            raise SourceChangedError("changed")
        original(source, key, sha256)

    store._backend.upload = upload  # type: ignore[method-assign]
    with pytest.raises(SourceChangedError):
        store.publish(path, kind="dataset", name="raw")
    removed = store.collect_garbage().removed
    assert not any(key.startswith("blobs/") for key in removed)
    assert any(key.startswith("manifests/") for key in removed)


def test_versions_stay_however_old_and_unaliased(store: ArtifactStore, root: Path, tmp_path: Path):
    for text in ("one", "two", "three"):
        publish(store, tmp_path, text)
    age(root, 1000 * DAY)
    result = store.collect_garbage(grace_s=0)
    assert (result.removed, result.kept) == ([], len(objects(root)))
    assert [v.version for v in store.versions("raw")] == [1, 2, 3]
