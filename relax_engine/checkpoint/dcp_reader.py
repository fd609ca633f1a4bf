"""Reading parts of a torch distributed checkpoint without loading it.

What lives here: the listing of stored tensors and the reading of any box of one. What the keys mean is
``dcp_layout.py``'s matter.
"""

from __future__ import annotations

import contextlib
import math
import operator
import pickle
import zipfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata

from relax_engine.checkpoint.errors import DamagedCheckpointError
from relax_engine.checkpoint.files import Extent, Files, LocalFiles, Place, files_at, read_bytes, window
from relax_engine.checkpoint.saved_tensor import SavedTensor, bytes_of, locate_tensor

_METADATA = ".metadata"
_UNREADABLE = (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, ValueError, EOFError, OSError, RuntimeError)


class DcpReader:
    """One checkpoint (``.metadata`` and ``*.distcp``), local or in object storage, read box by box.

    The metadata is a pickle: open checkpoints you trust.
    """

    def __init__(self, place: Place) -> None:
        """Read the metadata.

        Raises:
            DamagedCheckpointError: there is none, or it is truncated.
        """
        self.place = place
        self._files: Files = files_at(place)
        self._located: dict[MetadataIndex, SavedTensor] = {}
        self._sizes = self._files.sizes()
        if _METADATA not in self._sizes:
            raise DamagedCheckpointError(f"{place} has no .metadata: not a distributed checkpoint")
        try:
            metadata: Metadata = pickle.loads(read_bytes(self._files, _METADATA, self._sizes[_METADATA]))
        except (pickle.UnpicklingError, EOFError) as error:
            raise DamagedCheckpointError(f"{place}/{_METADATA} cannot be read: {error}") from error
        self._storage = metadata.storage_data
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

        Of every chunk that the box touches, only the rows that it touches are read. Memory: the box, and where a
        chunk is wider than the box these rows.

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
            part = self._read_from(key, chunk, overlap)
            if overlap.size == size:
                return part
            if target is None:
                target = torch.empty(size, dtype=entry.properties.dtype)
            _narrow(target, overlap.begin, start, overlap.size).copy_(part)
            covered += math.prod(overlap.size)
        if target is None or covered != math.prod(size):
            raise DamagedCheckpointError(
                f"{self.place}: the stored chunks of {key} do not cover offsets {start}, lengths {size} "
                f"(the tensor has shape {tuple(entry.size)})"
            )
        return target

    def read_rows(
        self, key: str, above: tuple[int, ...], first: int, rows: int, trailing: Sequence[int], block_bytes: int
    ) -> Iterator[Tensor]:
        """Rows ``first .. first + rows`` of one parameter, stacked or not, in blocks.

        Args:
            above: the parameter's index in the stacked tensor; () when it is stored by itself.
            trailing: the parameter's shape without its rows.
            block_bytes: about how much a block takes; at least one row.

        Yields:
            ``[n, *trailing]``.
        """
        row_bytes = math.prod(trailing) * self.dtype(key).itemsize
        step = max(1, block_bytes // max(1, row_bytes))
        place = self._run(key, above, first, rows, trailing)
        for at in range(first, first + rows, step):
            count = min(step, first + rows - at)
            if place is None:
                begin, size = (*above, at, *(0,) * len(trailing)), (*(1,) * len(above), count, *trailing)
                yield self.read(key, begin, size)[(0,) * len(above)]
            else:
                name, offset = place[0], place[1] + (at - first) * row_bytes
                with self._explained(key, name, offset):
                    yield self._fill(name, offset, (count, *trailing), self.dtype(key))

    def extent(self, key: str, above: tuple[int, ...], first: int, rows: int, trailing: Sequence[int]) -> Extent | None:
        """Where rows (as of ``read_rows``) lie in a local file, one after another; None where they do not."""
        place = self._run(key, above, first, rows, trailing) if isinstance(self._files, LocalFiles) else None
        if place is None or not isinstance(self._files, LocalFiles):
            return None
        return self._files.extent(*place, rows * math.prod(trailing) * self.dtype(key).itemsize)

    def _run(
        self, key: str, above: tuple[int, ...], first: int, rows: int, trailing: Sequence[int]
    ) -> tuple[str, int] | None:
        """File and first byte of rows that one chunk holds one after another."""
        begin, size = (*above, first, *(0,) * len(trailing)), (*(1,) * len(above), rows, *trailing)
        for chunk in self._tensors[key].chunks:
            whole_rows = chunk.sizes[len(above) + 1 :] == size[len(above) + 1 :]
            if whole_rows and _overlap(chunk, begin, size) == _Box(begin, size):
                name, base, saved = self._locate(key, chunk)
                at = [b - o for b, o in zip(begin, chunk.offsets, strict=True)]
                offset = base + saved.start + sum(map(operator.mul, at, saved.stride)) * saved.dtype.itemsize
                return (name, offset) if saved.is_row_major else None
        return None

    def _read_from(self, key: str, chunk: ChunkStorageMetadata, box: _Box) -> Tensor:
        """The part of one stored chunk that is ``box``."""
        name, base, saved = self._locate(key, chunk)
        with self._explained(key, name, base):
            return self._read_saved(name, base, saved, box, chunk.offsets)

    def _locate(self, key: str, chunk: ChunkStorageMetadata) -> tuple[str, int, SavedTensor]:
        """File, first byte in it, and layout of a stored chunk."""
        index = MetadataIndex(key, chunk.offsets)
        place = self._storage[index]
        name: str = place.relative_path
        if name not in self._sizes:
            raise DamagedCheckpointError(f"{self.place}/{name} is missing; it holds {key}")
        if index not in self._located:
            with self._explained(key, name, place.offset):
                self._located[index] = locate_tensor(window(self._files, name, place.offset, place.length))
        saved = self._located[index]
        if saved.shape != tuple(chunk.sizes):
            raise DamagedCheckpointError(
                f"{self.place}/{name}: {key} has shape {saved.shape}, not {tuple(chunk.sizes)}"
            )
        return name, place.offset, saved

    @contextlib.contextmanager
    def _explained(self, key: str, name: str, offset: int) -> Iterator[None]:
        try:
            yield
        except _UNREADABLE as error:
            message = f"{self.place}/{name} is damaged: cannot read {key} at byte {offset}: {error}"
            raise DamagedCheckpointError(message) from error

    def _read_saved(self, name: str, base: int, saved: SavedTensor, box: _Box, origin: Sequence[int]) -> Tensor:
        """Read the slices of the first dimension that ``box`` has more than one of, whole, and narrow the rest."""
        first = [b - o for b, o in zip(box.begin, origin, strict=True)]
        if not saved.is_row_major:  # a clone of a transposed tensor
            whole = self._fill(name, base + saved.start, (math.prod(saved.shape),), saved.dtype)
            whole = whole.as_strided(saved.shape, saved.stride)
            return _narrow(whole, first, (0,) * len(first), box.size)
        leading = next((dim for dim, count in enumerate(box.size[:-1]) if count > 1), max(0, len(box.size) - 1))
        shape = (*(1,) * leading, *box.size[leading : leading + 1], *saved.shape[leading + 1 :])
        start = sum(at * step for at, step in zip(first[: leading + 1], saved.stride, strict=False))
        rows = self._fill(name, base + saved.start + start * saved.dtype.itemsize, shape, saved.dtype)
        return _narrow(
            rows, first[leading + 1 :], (0,) * len(first[leading + 1 :]), box.size[leading + 1 :], leading + 1
        )

    def _fill(self, name: str, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        self._files.read_into(name, offset, bytes_of(tensor))
        return tensor


class _Box(NamedTuple):
    """A corner in the whole tensor's coordinates and a size."""

    begin: tuple[int, ...]
    size: tuple[int, ...]


def _overlap(chunk: ChunkStorageMetadata, start: tuple[int, ...], size: tuple[int, ...]) -> _Box | None:
    begin = tuple(map(max, chunk.offsets, start))
    ends = (
        min(at + extent, to + length)
        for at, extent, to, length in zip(chunk.offsets, chunk.sizes, start, size, strict=True)
    )
    extent = tuple(end - first for end, first in zip(ends, begin, strict=True))
    return _Box(begin, extent) if all(n > 0 for n in extent) else None


def _narrow(
    tensor: Tensor, begin: Sequence[int], origin: Sequence[int], size: Sequence[int], first_dim: int = 0
) -> Tensor:
    """The part of ``tensor`` (whose corner is ``origin``) from ``begin``, of ``size``; a view."""
    slices = tuple(slice(b - o, b - o + n) for b, o, n in zip(begin, origin, size, strict=True))
    return tensor[(slice(None),) * first_dim + slices]
