"""Versions of the weights under one URL of an object store, or of any file system that fsspec knows.

    <url>/latest.json                       the newest version's directory
    <url>/v-1f2e3d4c5b6a/manifest.json      every tensor of a version: its file and digest
    <url>/v-1f2e3d4c5b6a/00000.safetensors  the tensors of one bucket

A manifest is complete: a tensor that did not change is listed with the file of the older version that has it, so
reading never follows a chain. A version is seen only when all its files are there, since its manifest is written
after them and `latest.json` last. What only versions before the last two need is removed. One writer at a time.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from relax_engine.errors import RelaxError
from relax_engine.utils.object_store import open_filesystem
from relax_engine.weight_sync.arrival import DamagedBucketError, unpack, verify
from relax_engine.weight_sync.buckets import Bucket, unflatten
from relax_engine.weight_sync.checksum import base_digest
from relax_engine.weight_sync.codec import encode
from relax_engine.weight_sync.messages import BucketMeta, TensorMeta

MANIFEST = "manifest.json"
LATEST = "latest.json"
_KEPT_VERSIONS = 2


class WeightStoreError(RelaxError):
    """A version cannot be written or read; the message names URL and cause."""


@dataclass(slots=True)
class Manifest:
    """All tensors of one version: `digests` and `places` by tensor, `files` by path under the store's URL."""

    version: int
    digests: dict[str, int] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    files: dict[str, BucketMeta] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The document."""
        files = {
            path: {
                "tensors": [[t.name, t.dtype, list(t.shape)] for t in meta.tensors],
                "checksum": meta.checksum,
                "encoded_nbytes": meta.encoded_nbytes,
            }
            for path, meta in self.files.items()
        }
        tensors = {n: {"digest": f"{digest:016x}", "file": self.places[n]} for n, digest in self.digests.items()}
        return json.dumps({"version": self.version, "files": files, "tensors": tensors}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read the document.

        Raises:
            ValueError, KeyError, TypeError: it is not one.
        """
        document = json.loads(data)
        files = {
            path: BucketMeta(
                tuple(TensorMeta(name, dtype, tuple(shape)) for name, dtype, shape in entry["tensors"]),
                entry["checksum"],
                entry["encoded_nbytes"],
            )
            for path, entry in document["files"].items()
        }
        digests = {name: int(entry["digest"], 16) for name, entry in document["tensors"].items()}
        places = {name: entry["file"] for name, entry in document["tensors"].items()}
        return cls(int(document["version"]), digests, places, files)


class WeightStore:
    """Writes versions under `url`; `compress` trades files that anybody can read for smaller ones."""

    def __init__(self, url: str, *, compress: bool = False) -> None:
        self.url = url.rstrip("/")
        self.compress = compress
        self.fs, self.root = open_filesystem(self.url)
        self._kept: deque[Manifest] = deque(maxlen=_KEPT_VERSIONS)

    def writer(self) -> VersionWriter:
        """Begin a version; what an unfinished one had written is never seen."""
        return VersionWriter(self, self._kept[-1] if self._kept else Manifest(-1))

    def put(self, path: str, data: bytes) -> None:
        """Write one file, whole or not at all where the file system can."""
        target = f"{self.root}/{path}"
        with _explained(f"write {self.url}/{path}"):
            self.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            if "file" in self.fs.protocol:
                self.fs.pipe_file(f"{target}.part", data)
                self.fs.mv(f"{target}.part", target)
            else:
                self.fs.pipe_file(target, data)

    def published(self, manifest: Manifest, directory: str) -> None:
        """`manifest` is complete: make it the newest version, and remove what is of no use any more."""
        self.put(f"{directory}/{MANIFEST}", manifest.to_json())
        self.put(LATEST, json.dumps({"version": manifest.version, "directory": directory}).encode())
        self._kept.append(manifest)
        if len(self._kept) == _KEPT_VERSIONS:
            used = {path.partition("/")[0] for kept in self._kept for path in kept.files} | {directory}
            with _explained(f"remove old versions of {self.url}"):
                self.fs.invalidate_cache(self.root)
                for path in self.fs.ls(self.root, detail=False):
                    name = path.rstrip("/").rpartition("/")[2]
                    if name.startswith("v-") and name not in used:
                        self.fs.rm(path, recursive=True)


class VersionWriter:
    """One version being written. `base` is the digest of the version before it."""

    def __init__(self, store: WeightStore, previous: Manifest) -> None:
        self.base = base_digest(previous.digests)
        self._store, self._previous = store, previous
        self._files: dict[str, BucketMeta] = {}
        self._places: dict[str, str] = {}
        self._directory = f"v-{uuid.uuid4().hex[:12]}"

    def add(self, bucket: Bucket) -> None:
        """Write the tensors of one bucket."""
        meta = bucket.meta
        stem = f"{self._directory}/{len(self._files):05d}"
        if self._store.compress:
            payload = encode(bucket.data, meta.itemsize)
            path, meta = f"{stem}.zst", BucketMeta(meta.tensors, meta.checksum, payload.numel())
            self._store.put(path, payload.numpy().tobytes())
        else:
            path = f"{stem}.safetensors"
            self._store.put(path, safetensors.torch.save(dict(unflatten(meta, bucket.data))))
        self._files[path] = meta
        self._places |= {tensor.name: path for tensor in meta.tensors}

    def publish(self, digests: Mapping[str, int], version: int) -> str:
        """Complete the version; `digests` are those of all its tensors, written or not. Returns its URL."""
        places = {name: self._places.get(name) or self._previous.places[name] for name in digests}
        files = {path: self._files.get(path) or self._previous.files[path] for path in places.values()}
        self._store.published(Manifest(version, dict(digests), places, files), self._directory)
        return f"{self._store.url}/{self._directory}"


def latest_version(url: str) -> str | None:
    """URL of the newest version under `url`, None where there is none yet.

    Raises:
        WeightStoreError: the place cannot be read.
    """
    fs, root = open_filesystem(url.rstrip("/"))
    with _explained(f"read {url}/{LATEST}"):
        if not fs.exists(f"{root}/{LATEST}"):
            return None
        return f"{url.rstrip('/')}/{json.loads(fs.cat_file(f'{root}/{LATEST}'))['directory']}"


def is_stored_version(url: str) -> bool:
    """Whether `url` is the directory of one version."""
    fs, root = open_filesystem(url.rstrip("/"))
    return bool(fs.exists(f"{root}/{MANIFEST}"))


def read_version(url: str, held: Mapping[str, int]) -> tuple[Manifest, Iterator[tuple[str, Tensor]]]:
    """The manifest of the version at `url`, and those of its tensors whose digest differs from that in `held`.

    Tensors are read file by file, and verified.

    Raises:
        WeightStoreError: a file is missing, unreadable or damaged.
    """
    fs, directory = open_filesystem(url.rstrip("/"))
    with _explained(f"read {url}/{MANIFEST}"):
        manifest = Manifest.from_json(fs.cat_file(f"{directory}/{MANIFEST}"))
    wanted = {name for name, digest in manifest.digests.items() if held.get(name) != digest}
    return manifest, _read(fs, directory.rpartition("/")[0], manifest, wanted)


def _read(fs: Any, root: str, manifest: Manifest, wanted: set[str]) -> Iterator[tuple[str, Tensor]]:
    for path in dict.fromkeys(manifest.places[name] for name in manifest.places if name in wanted):
        meta = manifest.files[path]
        with _explained(f"read {path}"):
            data = fs.cat_file(f"{root}/{path}")
            if meta.encoded_nbytes is not None:
                named, _ = unpack(meta, torch.frombuffer(bytearray(data), dtype=torch.uint8))
            else:
                tensors = safetensors.torch.load(data)
                named = [(tensor.name, tensors[tensor.name]) for tensor in meta.tensors]
                verify(meta, named)
        yield from ((name, tensor) for name, tensor in named if name in wanted and manifest.places[name] == path)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, DamagedBucketError) as error:
        raise WeightStoreError(f"cannot {what}: {error!r}") from error
