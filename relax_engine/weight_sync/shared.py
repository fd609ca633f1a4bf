"""Tensors in shared memory of a host, passed from one process to others by handle.

The handles are those of torch's `file_system` sharing strategy, in the pickled list of `(name, tensor)` pairs that
SGLang's `/update_weights_from_tensor` takes. The memory goes with its last owner, a killed one too: torch keeps a
small process (`torch_shm_manager`) for that. What does not live here: who may write when (`transports`).
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor, UntypedStorage

from relax_engine.weight_sync.buckets import Bucket, torch_dtype

ALIGNMENT = 64
_SENDER_BUFFERS = 2
_ALLOWED = {
    ("torch", "Tensor"),
    ("torch._tensor", "Tensor"),
    ("torch", "Size"),
    ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
    ("torch.multiprocessing.reductions", "rebuild_tensor"),
    ("torch.multiprocessing.reductions", "rebuild_typed_storage"),
    ("torch.multiprocessing.reductions", "rebuild_storage_filename"),
    ("torch.multiprocessing.reductions", "rebuild_storage_empty"),
}


def shared_buffer(nbytes: int) -> Tensor:
    """A uint8 tensor in shared memory."""
    with _by_name():
        return torch.empty(nbytes, dtype=torch.uint8).share_memory_()


def share_tensors(bucket: Bucket) -> bytes:
    """Handles of the tensors of `bucket`, whose staging is a `shared_buffer`, for one process to open once."""
    pairs = [
        (meta.name, bucket.data[start : start + meta.nbytes].view(torch_dtype(meta.dtype)).view(meta.shape))
        for meta, start in zip(bucket.meta.tensors, bucket.starts, strict=True)
    ]
    stream = io.BytesIO()
    with _by_name():
        ForkingPickler(stream, pickle.HIGHEST_PROTOCOL).dump(pairs)
    return stream.getvalue()


def open_tensors(serialized: bytes) -> list[tuple[str, Tensor]]:
    """The tensors behind `share_tensors`, without a copy.

    Raises:
        ValueError: it is not such a list, or this host has no such memory.
    """
    try:
        pairs = _Unpickler(io.BytesIO(serialized)).load()
    except (pickle.UnpicklingError, EOFError, RuntimeError, OSError) as error:
        raise ValueError(f"the tensors cannot be opened in this process: {error}") from error
    if not isinstance(pairs, list) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Tensor)
        for pair in pairs
    ):
        raise ValueError("the tensors must be a list of (name, tensor) pairs")
    return pairs


class SharedReader:
    """Opens a sender's buckets one after the other in mappings that stay.

    A mapping is made of page faults, which cost as much as reading it. A sender has two buffers, so the two last ones
    stay mapped until `close`; others go with the last tensor in them.
    """

    def __init__(self) -> None:
        self._mapped: dict[int, UntypedStorage] = {}

    def open(self, serialized: bytes) -> list[tuple[str, Tensor]]:
        """As `open_tensors`; torch opens what is still mapped by finding it."""
        pairs = open_tensors(serialized)
        for _, tensor in pairs:
            storage = tensor.untyped_storage()
            self._mapped.pop(storage.data_ptr(), None)
            self._mapped[storage.data_ptr()] = storage
        for address in list(self._mapped)[:-_SENDER_BUFFERS]:
            del self._mapped[address]
        return pairs

    def close(self) -> None:
        """Unmap them."""
        self._mapped.clear()


class _Unpickler(pickle.Unpickler):
    """Knows tensors in shared host memory and nothing else, so that what arrives cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = (module, name) in _ALLOWED or (module == "torch" and isinstance(getattr(torch, name, 0), torch.dtype))
        if not allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a tensor in shared host memory")
        return super().find_class(module, name)


@contextlib.contextmanager
def _by_name() -> Iterator[None]:
    """Shared memory that strangers can open: by a name instead of an inherited file descriptor."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        yield
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
