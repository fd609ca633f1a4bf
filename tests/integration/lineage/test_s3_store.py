"""What is particular to a store in a bucket: parts, caches, damage, leavings, and refusals."""

import datetime
import random
import signal
from pathlib import Path

import pytest
import s3fs
from publishers import start, tell

from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.errors import CorruptArtifactError, StoreUrlError

LARGE_BYTES = 17 << 20

UPLOAD_HALF = """
import sys
from pathlib import Path
from relax_engine.lineage.backend import open_backend
backend = open_backend(sys.argv[1], create=True)
print("ready", flush=True)
sys.stdin.readline()
writer = backend._fs.open(backend._path("blobs/aa/aa"), "wb", block_size=5 << 20, autocommit=False)
writer.write(bytes(6 << 20))
print("uploading", flush=True)
sys.stdin.readline()
"""

pytestmark = pytest.mark.parametrize("store_url", ["s3"], indirect=True)


@pytest.fixture
def bucket(store_url: str) -> s3fs.S3FileSystem:
    """Direct access to what the store wrote."""
    return s3fs.S3FileSystem(use_listings_cache=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, so that checkouts are cached below it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_file_of_several_parts_comes_back_and_is_cached(store_url: str, tmp_path: Path, home: Path):
    content = random.Random(0).randbytes(LARGE_BYTES)
    (tmp_path / "model.safetensors").write_bytes(content)
    store = ArtifactStore.open(store_url)
    artifact = store.publish(tmp_path / "model.safetensors", kind="model", name="large")
    assert store.verify(artifact) == []
    place = ArtifactStore.open(store_url, create=False).fetch("large")
    assert place.read_bytes() == content
    assert place.is_relative_to(home / ".cache")
    assert store.holders(place) == [artifact]


def test_altered_and_missing_objects_are_named(store_url: str, tmp_path: Path, bucket: s3fs.S3FileSystem):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("altered", "missing", "whole"):
        (folder / name).write_text(name)
    store = ArtifactStore.open(store_url)
    artifact = store.publish(folder, kind="dataset", name="data")
    blobs = {entry.path: f"{store_url}/blobs/{entry.sha256[:2]}/{entry.sha256}" for entry in artifact.files}
    bucket.pipe_file(blobs["altered"], b"something else")
    bucket.rm_file(blobs["missing"])
    first, second = store.verify(artifact)
    assert first.startswith("altered: stored bytes hash to")
    assert second.startswith("missing: blob")
    with pytest.raises(CorruptArtifactError, match="altered should have 7 bytes"):
        store.fetch(artifact)
    bucket.rm_file(blobs["altered"])
    assert store.publish(folder, kind="dataset", name="data") == artifact
    assert store.verify(artifact) == []


def test_collection_ends_uploads_that_were_killed_and_removes_orphans(
    store_url: str, tmp_path: Path, bucket: s3fs.S3FileSystem
):
    store = ArtifactStore.open(store_url)
    (tmp_path / "raw").write_text("rows")
    artifact = store.publish(tmp_path / "raw", kind="dataset", name="raw")
    bucket.pipe_file(f"{store_url}/blobs/00/{'0' * 64}", b"never committed")
    writer = start(UPLOAD_HALF, store_url)
    tell(writer)
    assert writer.stdout.readline() == "uploading\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait(10)

    # moto says of every upload that it began in 2010; a real server knows that this one is young.
    assert store.collect_garbage(grace_s=60, dry_run=True).removed in ([], ["blobs/aa/aa"])
    removed = store.collect_garbage(grace_s=-5).removed  # times are whole seconds
    assert removed == [f"blobs/00/{'0' * 64}", "blobs/aa/aa"]
    assert store.collect_garbage(grace_s=-5).removed == []
    assert store.verify(artifact) == []


def test_renewing_makes_an_object_young_and_keeps_its_bytes(store_url: str, bucket: s3fs.S3FileSystem):
    store = ArtifactStore.open(store_url)
    backend = store._backend
    backend.put_if_absent("blobs/ab/ab", b"content")
    before = backend.modified("blobs/ab/ab")
    now = datetime.datetime.now(datetime.UTC).timestamp()
    backend.renew("blobs/ab/ab")
    assert before <= backend.modified("blobs/ab/ab") <= now + 5
    assert bucket.cat_file(f"{store_url}/blobs/ab/ab") == b"content"
    with pytest.raises(FileNotFoundError):
        backend.renew("blobs/ab/none")


def test_a_place_without_a_store_or_a_bucket_is_refused(store_url: str):
    with pytest.raises(StoreUrlError, match="no artifact store at s3://"):
        ArtifactStore.open(store_url, create=False)
    with pytest.raises(StoreUrlError, match="cannot reach s3://no-such-bucket-here/x"):
        ArtifactStore.open("s3://no-such-bucket-here/x")
