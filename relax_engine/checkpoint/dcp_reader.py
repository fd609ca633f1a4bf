"""Reading parts of a torch distributed checkpoint without loading it.

What lives here: the listing of stored tensors and the reading of any box of one. What the keys mean is
``dcp_layout.py``'s matter.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

from relax_engine.checkpoint.errors import DamagedCheckpointError


class DcpReader:
    """One checkpoint directory (``.metadata`` and ``*.distcp``), read box by box.

    The directory's metadata is a pickle: open checkpoints you trust.
    """

    def __init__(self, directory: Path | str) -> None:
        """Read the metadata.

        Raises:
            DamagedCheckpointError: there is none, or it is truncated.
        """
        self.directory = Path(directory)
        try:
            metadata = FileSystemReader(self.directory).read_metadata()
        except FileNotFoundError:
            raise DamagedCheckpointError(f"{self.directory} has no .metadata: not a distributed checkpoint") from None
        except (pickle.UnpicklingError, EOFError) as error:
            raise DamagedCheckpointError(f"{self.directory}/.metadata cannot be read: {error}") from error
        self._storage: dict[MetadataIndex, Any] = metadata.storage_data
        self._tensors: dict[str, TensorStorageMetadata] = {
            key: entry
            for key, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def keys(self) -> list[str]:
        """Keys of all stored tensors."""
        return list(self._tensors)

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def shape(self, key: str) -> tuple[int, ...]:
        """The whole tensor's shape."""
        return tuple(self._tensors[key].size)

    def dtype(self, key: str) -> torch.dtype:
        """The stored element type."""
        return self._tensors[key].properties.dtype

    def read(self, key: str, offsets: Sequence[int] | None = None, lengths: Sequence[int] | None = None) -> Tensor:
        """The box ``offsets .. offsets + lengths`` of a tensor (by default all of it), of ``lengths``' shape.

        Stored chunks are read one at a time; a box inside a single chunk is a view of that chunk, so the
        memory needed is the box, or the box and the largest chunk that overlaps it.

        Raises:
            KeyError: no such tensor.
            DamagedCheckpointError: a file is missing or truncated, or the chunks do not cover the box.
        """
        entry = self._tensors[key]
        start = tuple(offsets) if offsets is not None else (0,) * len(entry.size)
        size = tuple(lengths) if lengths is not None else tuple(entry.size)
        target: Tensor | None = None
        covered = 0
        for chunk in entry.chunks:
            overlap = _overlap(chunk, start, size)
            if overlap is None:
                continue
            stored = _narrow(self._read_chunk(key, chunk), overlap.begin, chunk.offsets, overlap.size)
            if overlap.size == size:
                return stored
            if target is None:
                target = torch.empty(size, dtype=entry.properties.dtype)
            _narrow(target, overlap.begin, start, overlap.size).copy_(stored)
            covered += math.prod(overlap.size)
        if target is None or covered != math.prod(size):
            raise DamagedCheckpointError(
                f"{self.directory}: the stored chunks of {key} do not cover offsets {start}, lengths {size} "
                f"(the tensor has shape {tuple(entry.size)})"
            )
        return target

    def _read_chunk(self, key: str, chunk: ChunkStorageMetadata) -> Tensor:
        place = self._storage[MetadataIndex(key, chunk.offsets)]
        path = self.directory / place.relative_path
        try:
            with path.open("rb") as stream:
                item = _FileSlice(stream, place.offset, place.length)
                tensor: Tensor = torch.load(item, map_location="cpu", weights_only=True)  # type: ignore[arg-type]
        except FileNotFoundError:
            raise DamagedCheckpointError(f"{path} is missing; it holds {key}") from None
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
            raise DamagedCheckpointError(f"{path} is damaged: cannot read {key} at byte {place.offset}") from error
        if tuple(tensor.shape) != tuple(chunk.sizes):
            raise DamagedCheckpointError(f"{path}: {key} has shape {tuple(tensor.shape)}, not {tuple(chunk.sizes)}")
        return tensor


class _Box:
    """A corner in the whole tensor's coordinates and a size."""

    def __init__(self, begin: tuple[int, ...], size: tuple[int, ...]) -> None:
        self.begin = begin
        self.size = size


def _overlap(chunk: ChunkStorageMetadata, start: tuple[int, ...], size: tuple[int, ...]) -> _Box | None:
    begin = tuple(map(max, chunk.offsets, start))
    ends = (
        min(at + extent, to + length)
        for at, extent, to, length in zip(chunk.offsets, chunk.sizes, start, size, strict=True)
    )
    extent = tuple(end - first for end, first in zip(ends, begin, strict=True))
    return _Box(begin, extent) if all(n > 0 for n in extent) else None


def _narrow(tensor: Tensor, begin: Sequence[int], origin: Sequence[int], size: Sequence[int]) -> Tensor:
    """The part of ``tensor`` (whose corner is ``origin``) from ``begin``, of ``size``; a view."""
    return tensor[tuple(slice(b - o, b - o + n) for b, o, n in zip(begin, origin, size, strict=True))]


class _FileSlice(io.RawIOBase):
    """A window of an open file as a file. ``torch.load`` reads into its own buffers through ``readinto``."""

    def __init__(self, stream: BinaryIO, offset: int, length: int) -> None:
        self._stream = stream
        self._offset = offset
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._length - self._position))
        self._stream.seek(self._offset + self._position)
        count = self._stream.readinto(view[:wanted])  # type: ignore[attr-defined]
        self._position += count
        return count
