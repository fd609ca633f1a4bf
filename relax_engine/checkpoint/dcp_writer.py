"""Writing a Megatron ``torch_dist`` checkpoint chunk by chunk, without a model or a process group.

The result is what ``torch.distributed.checkpoint`` and ``megatron.core.dist_checkpointing`` read: items saved
one after another in ``.distcp`` files, ``.metadata`` that says where each lies, Megatron's ``metadata.json``
and ``common.pt``. Memory: the chunk at hand.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

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

from relax_engine.checkpoint.output import Output

DEFAULT_FILE_BYTES = 4 * 2**30
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

    def __init__(self, output: Output, *, max_file_bytes: int = DEFAULT_FILE_BYTES) -> None:
        """Write into `output`, beginning a new file when one has `max_file_bytes`."""
        self._output = output
        self._max_file_bytes = max_file_bytes
        self._files = 0
        self._data: BinaryIO | None = None
        self._data_name = ""
        self._open_file = contextlib.ExitStack()
        self._entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        self._written: list[WriteResult] = []

    def __enter__(self) -> DcpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_file.__exit__(kind, error, trace)
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
        data = self._current_file()
        offset = data.tell()
        torch.save(value, _AppendOnly(data))  # type: ignore[arg-type]
        length = data.tell() - offset
        self._written.append(WriteResult(index, length, _StorageInfo(self._data_name, offset, length)))

    def _current_file(self) -> BinaryIO:
        if self._data is None or self._data.tell() >= self._max_file_bytes:
            self._open_file.close()
            self._data_name = f"__0_{self._files}.distcp"
            self._files += 1
            path = self._open_file.enter_context(self._output.file(self._data_name))
            self._data = self._open_file.enter_context(path.open("wb", buffering=0))
        return self._data

    def _finish(self) -> None:
        with tempfile.TemporaryDirectory(prefix="relax-metadata-") as directory:
            ReproducibleWriter(directory).finish(Metadata(dict(self._entries)), [self._written])
            content = Path(directory, ".metadata").read_bytes()
        common = io.BytesIO()
        torch.save({}, common)
        format_ = json.dumps(_FORMAT).encode()
        for name, data in (("common.pt", common.getvalue()), ("metadata.json", format_), (".metadata", content)):
            with self._output.file(name) as path:
                path.write_bytes(data)


class _AppendOnly(io.RawIOBase):
    """The end of an open file as a file of its own, so that each saved item begins at offset 0 of itself."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        while view:
            view = view[self._stream.write(view) :]
        return memoryview(data).nbytes
