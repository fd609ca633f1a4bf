"""Writing a Megatron ``torch_dist`` checkpoint chunk by chunk, without a model or a process group.

The result is what ``torch.distributed.checkpoint`` and ``megatron.core.dist_checkpointing`` read: items saved
one after another in one ``.distcp`` file, ``.metadata`` that says where each lies, Megatron's ``metadata.json``
and ``common.pt``. Memory: the chunk at hand.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

_DATA_FILE = "__0_0.distcp"
_FORMAT = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


class ReproducibleWriter(FileSystemWriter):
    """torch's file writer without the random id and the path it puts into ``.metadata``.

    The same state then gives the same bytes, wherever and whenever it is saved, and so the same artifact.
    """

    def storage_meta(self) -> StorageMeta:
        """Nothing that differs between two saves of one state."""
        return StorageMeta()


class DcpWriter:
    """Use as a context manager; leaving it without an exception completes the checkpoint."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._data = (self.directory / _DATA_FILE).open("wb")
        self._entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        self._written: list[WriteResult] = []

    def __enter__(self) -> DcpWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._data.close()
        if kind is None:
            self._finish()

    def add_tensor(self, key: str, whole_shape: Sequence[int], offsets: Sequence[int], chunk: Tensor) -> None:
        """Append one chunk (same rank as the whole tensor) that lies at ``offsets`` in it."""
        chunk = chunk.detach().contiguous()
        if chunk.untyped_storage().nbytes() != chunk.nbytes:
            chunk = chunk.clone()  # a view would be saved with all of its storage
        entry = self._entries.setdefault(
            key, TensorStorageMetadata(TensorProperties(dtype=chunk.dtype), torch.Size(whole_shape), [])
        )
        assert isinstance(entry, TensorStorageMetadata)
        entry.chunks.append(ChunkStorageMetadata(torch.Size(offsets), chunk.shape))
        self._append(MetadataIndex(key, torch.Size(offsets)), chunk)

    def add_object(self, key: str, value: Any) -> None:
        """Append a pickled object, wrapped in a list as Megatron does."""
        self._entries[key] = BytesStorageMetadata()
        self._append(MetadataIndex(key), [value])

    def _append(self, index: MetadataIndex, value: Any) -> None:
        offset = self._data.tell()
        torch.save(value, _AppendOnly(self._data))  # type: ignore[arg-type]
        length = self._data.tell() - offset
        self._written.append(WriteResult(index, length, _StorageInfo(_DATA_FILE, offset, length)))

    def _finish(self) -> None:
        ReproducibleWriter(self.directory).finish(Metadata(dict(self._entries)), [self._written])
        (self.directory / "metadata.json").write_text(json.dumps(_FORMAT))
        torch.save({}, self.directory / "common.pt")


class _AppendOnly(io.RawIOBase):
    """The end of an open file as a file of its own, so that each saved item begins at offset 0 of itself."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self._stream.write(data))
