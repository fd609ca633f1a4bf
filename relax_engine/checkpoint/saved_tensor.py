"""Where the numbers of a tensor lie in a file that `torch.save` wrote, so that any part of it can be read alone.

Such a file is a zip archive without compression (torch/csrc/jit/serialization, "archive/data.pkl" and
"archive/data/0"); the pickle names a storage, an offset, a size and strides. Nothing else is unpickled, no code is run.
"""

from __future__ import annotations

import pickle
import struct
import sys
import zipfile
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

_LOCAL_HEADER = 30  # bytes before the name in a zip entry; the lengths of name and extra field are its last four
_STORAGES = {
    f"{name}Storage": dtype
    for name, dtype in {
        "Double": torch.float64,
        "Float": torch.float32,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Long": torch.int64,
        "Int": torch.int32,
        "Short": torch.int16,
        "Char": torch.int8,
        "Byte": torch.uint8,
        "Bool": torch.bool,
    }.items()
}


class SavedTensor(NamedTuple):
    """A tensor in a file: its first element is `start` bytes from the file's beginning; strides count elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    @property
    def is_row_major(self) -> bool:
        """Whether its elements lie one after another, the last dimension's first."""
        return self.stride == torch.empty(self.shape, device="meta").stride()


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    view: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
    return view


def locate_tensor(file: BinaryIO) -> SavedTensor:
    """Find the one tensor of an open file.

    Raises:
        zipfile.BadZipFile, pickle.UnpicklingError, KeyError, EOFError, OSError, ValueError: it is no such file.
    """
    with zipfile.ZipFile(file) as archive:
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        if "byteorder" in names and archive.read(names["byteorder"]).decode() != sys.byteorder:
            raise ValueError("it was written on a machine of the other byte order")
        with archive.open(names["data.pkl"]) as stream:
            found = _Unpickler(stream).load()
        if not isinstance(found, _Described):
            raise pickle.UnpicklingError(f"it holds a {type(found).__name__}, not a tensor")
        entry = archive.getinfo(names[f"data/{found.storage.key}"])
        file.seek(entry.header_offset)
        name_length, extra_length = struct.unpack("<26xHH", file.read(_LOCAL_HEADER))
    data = entry.header_offset + _LOCAL_HEADER + name_length + extra_length
    dtype = found.storage.dtype
    return SavedTensor(dtype, found.shape, found.stride, data + found.offset * dtype.itemsize)


class _Storage(NamedTuple):
    dtype: torch.dtype
    key: str


class _Described(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _describe(storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> _Described:
    return _Described(storage, offset, tuple(shape), tuple(stride))


class _Unpickler(pickle.Unpickler):
    """Knows how a plain tensor is pickled and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _describe
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, not a plain tensor")

    def persistent_load(self, identity: Any) -> _Storage:
        kind, dtype, key, *_ = identity
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError(f"it refers to {kind!r}, not to a tensor's storage")
        return _Storage(dtype, str(key))
