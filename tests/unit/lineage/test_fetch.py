import shutil
from pathlib import Path

import pytest

from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.errors import CorruptArtifactError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub/weights.bin").write_bytes(b"w" * 5_000_000)
    return folder


def damage(blob: Path) -> None:
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.unlink()
    blob.write_bytes(data)


def blob_of(store_root: Path, sha256: str) -> Path:
    return store_root / "blobs" / sha256[:2] / sha256


def test_fetch_gives_the_published_tree_and_the_file_when_a_file_was_published(store, source: Path):
    place = store.fetch(store.publish(source, kind="model", name="m"))
    assert (place / "sub/weights.bin").read_bytes() == b"w" * 5_000_000
    assert (place / "config.json").stat().st_mode & 0o222 == 0
    assert store.fetch("m") == place
    single = store.fetch(store.publish(source / "config.json", kind="dataset", name="d"))
    assert single.name == "config.json"
    assert single.read_text() == "{}"


def test_a_checkout_that_lost_or_gained_files_is_rebuilt(store: ArtifactStore, source: Path):
    place = store.fetch(store.publish(source, kind="model", name="m"))
    (place / "config.json").unlink()
    (place / "stray").write_text("not published")
    store.fetch("m")
    assert sorted(p.name for p in place.iterdir()) == ["config.json", "sub"]


def test_one_flipped_bit_is_found_by_verify_and_by_fetch_and_publishing_again_repairs(store, source, tmp_path: Path):
    artifact = store.publish(source, kind="model", name="m")
    assert store.verify(artifact) == []
    weights = next(f for f in artifact.files if f.path == "sub/weights.bin")
    blob = blob_of(tmp_path / "store", weights.sha256)
    damage(blob)
    (problem,) = store.verify("m")
    assert problem.startswith("sub/weights.bin: stored bytes hash to ")
    with pytest.raises(CorruptArtifactError, match=r"m@v1 is damaged: sub/weights\.bin should have 5000000 bytes"):
        store.fetch("m")
    assert list((tmp_path / "store/checkouts").iterdir()) == []
    blob.unlink()
    assert store.verify("m") == [f"sub/weights.bin: blob {weights.sha256} is missing"]
    with pytest.raises(CorruptArtifactError, match="is missing"):
        store.fetch("m")
    assert store.publish(source, kind="model", name="m") == artifact
    assert store.verify("m") == []
    assert (store.fetch("m") / "sub/weights.bin").stat().st_size == 5_000_000


def test_damage_to_a_checkout_made_earlier_is_found(store: ArtifactStore, source: Path, tmp_path: Path):
    place = store.fetch(store.publish(source, kind="model", name="m"))
    weights = place / "sub/weights.bin"
    copy = tmp_path / "copy"
    shutil.copy(weights, copy)
    damage(copy)
    weights.unlink()
    shutil.copy(copy, weights)
    assert (store.fetch("m") / "sub/weights.bin").read_bytes() == b"w" * 5_000_000


def test_an_altered_manifest_is_found(store: ArtifactStore, source: Path, tmp_path: Path):
    artifact = store.publish(source, kind="model", name="m")
    (manifest,) = (tmp_path / "store/manifests").glob("*/*.json")
    manifest.write_bytes(manifest.read_bytes().replace(b'"size":2', b'"size":3'))
    with pytest.raises(CorruptArtifactError, match=f"{artifact.digest}.*is altered"):
        store.resolve("m")
