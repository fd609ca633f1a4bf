"""Receiving weights: update groups, the begin/end transaction, loading from disk.

Runs in a worker thread of the server while the engine keeps its own thread; only the final adoption is a
command to the engine. What does not live here: the sending side (`relax_engine.weight_sync.sender`).
"""

from __future__ import annotations

import datetime
import enum
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from relax_engine.backends.engines.local.arch import load_architecture
from relax_engine.backends.engines.local.engine import LocalEngine
from relax_engine.backends.engines.local.errors import ModelError, WeightUpdateError
from relax_engine.backends.engines.local.weights import check_tensor, expected_shapes, read_weights

logger = logging.getLogger(__name__)


class UpdateState(enum.StrEnum):
    """Where the weight-update transaction stands."""

    CLOSED = "closed"
    OPEN = "open"
    FAILED = "failed"


class WeightReceiver:
    """The transaction of one weight update.

    CLOSED -> OPEN (`begin`) -> CLOSED (`end`); any failed bucket leads to FAILED, from which only `begin` (a
    new attempt) or leaving the group leads on. Invariant: received tensors are staged beside the served
    ones, so until `end` returns the engine serves the old weights under the old version, whatever fails.
    Trace: begin, bucket 1 ok, bucket 2 with a wrong checksum -> FAILED, staging dropped; end -> refused;
    begin, bucket 1, bucket 2, end -> new weights, new version, both in one step of the engine.
    """

    def __init__(self, engine: LocalEngine, *, timeout_s: float) -> None:
        self.engine, self.timeout_s = engine, timeout_s
        self.state = UpdateState.CLOSED
        self._shapes = expected_shapes(engine.arch)
        self._groups: dict[str, ProcessGroup] = {}
        self._staged: dict[str, Tensor] = {}
        self._version: str | None = None
        self._flush = False
        self._lock = threading.Lock()

    def join(
        self, *, master_address: str, master_port: int, rank: int, world_size: int, group_name: str, backend: str
    ) -> str:
        """Join an update group; returns once every member is there.

        Raises:
            WeightUpdateError: the name is taken, or someone did not join in time.
        """
        from relax_engine.weight_sync.group import GroupInitError, join_group
        from relax_engine.weight_sync.messages import GroupAddress

        with self._lock:
            if group_name in self._groups:
                raise WeightUpdateError(f"group_name {group_name!r} is joined already; destroy it or use another name")
            if not 0 < rank < world_size:
                raise WeightUpdateError(f"rank_offset must be in [1, world_size={world_size}), got {rank}")
            address = GroupAddress(master_address, master_port, group_name, world_size, backend)
            try:
                self._groups[group_name] = join_group(address, rank, timeout_s=self.timeout_s)
            except GroupInitError as error:
                raise WeightUpdateError(str(error)) from error
        return f"joined {group_name!r} as rank {rank} of {world_size}"

    def leave(self, group_name: str) -> str:
        """Leave a group; an open transaction is dropped with it.

        Raises:
            WeightUpdateError: no such group.
        """
        with self._lock:
            if group_name not in self._groups:
                raise WeightUpdateError(f"group_name {group_name!r} is not joined; joined: {sorted(self._groups)}")
            self._drop_group(group_name)
            self._reset(UpdateState.CLOSED)
        return f"left {group_name!r}"

    def begin(self) -> str:
        """Open a transaction; what an unfinished one had staged is dropped."""
        with self._lock:
            dropped = len(self._staged)
            if self.state is UpdateState.OPEN:
                logger.warning("weight update begins again, %d staged tensors of the last attempt dropped", dropped)
            self._reset(UpdateState.OPEN)
        return f"weight update open, {dropped} staged tensors of an unfinished one dropped"

    def receive(
        self,
        *,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        group_name: str,
        flattened: bool,
        checksum: str | None,
        version: str | None,
        flush: bool,
    ) -> str:
        """Take part in the broadcast of one bucket from rank 0, verify it and stage it.

        `checksum` is `tensor_checksum` of one uint8 tensor with the bucket's bytes in order.

        Raises:
            WeightUpdateError: outside begin/end, unknown tensor, broadcast failed, checksum differs. After
                `begin` each of them fails the transaction.
        """
        with self._lock:
            if self.state is not UpdateState.OPEN:
                raise WeightUpdateError(
                    f"the weight update is {self.state}: call /begin_weight_update before sending weights"
                )
            try:
                staged = self._receive(names, dtypes, shapes, group_name, flattened, checksum)
            except WeightUpdateError:
                self._reset(UpdateState.FAILED)
                raise
            self._staged.update(staged)
            self._flush = self._flush or flush
            self._version = version if version is not None else self._version
        return f"staged {len(names)} tensors"

    def end(self, version: str | None = None) -> str:
        """Adopt everything staged, and the version, between two steps of the engine.

        Raises:
            WeightUpdateError: no transaction is open, or it failed.
        """
        with self._lock:
            if self.state is not UpdateState.OPEN:
                raise WeightUpdateError(f"the weight update is {self.state}: nothing to end; begin again")
            staged, flush = self._staged, self._flush
            version = version if version is not None else self._version
            adopted = self.engine.call(lambda: self.engine.adopt_weights(staged, version, flush=flush))
            adopted.result(timeout=self.timeout_s)
            self._reset(UpdateState.CLOSED)
        return f"adopted {len(staged)} tensors as version {self.engine.scheduler.version!r}"

    def load_from_disk(self, directory: Path, *, version: str | None, flush: bool) -> str:
        """Read a model directory of the same architecture and adopt it.

        Raises:
            WeightUpdateError: it cannot be read or its tensors differ; the engine keeps its weights.
        """
        with self._lock:
            try:
                arch = load_architecture(directory)
                if arch.name != self.engine.arch.name:
                    raise ModelError(f"{directory} is a {arch.name}, the engine serves {self.engine.arch.name}")
                tensors = read_weights(self.engine.arch, directory, self.engine.dtype)
            except ModelError as error:
                raise WeightUpdateError(str(error)) from error
            adopted = self.engine.call(lambda: self.engine.adopt_weights(tensors, version, flush=flush))
            adopted.result(timeout=self.timeout_s)
        return f"loaded {len(tensors)} tensors from {directory}"

    def close(self) -> None:
        """Leave all groups."""
        with self._lock:
            for name in list(self._groups):
                self._drop_group(name)

    def _reset(self, state: UpdateState) -> None:
        self.state, self._staged, self._version, self._flush = state, {}, None, False

    def _drop_group(self, name: str) -> None:
        from relax_engine.weight_sync.group import leave_group

        leave_group(self._groups.pop(name))

    def _receive(
        self,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        group_name: str,
        flattened: bool,
        checksum: str | None,
    ) -> dict[str, Tensor]:
        from relax_engine.weight_sync.buckets import flatten, unflatten
        from relax_engine.weight_sync.messages import BucketMeta, TensorMeta

        if not len(names) == len(dtypes) == len(shapes) or not names:
            raise WeightUpdateError(
                "names, dtypes and shapes must have one entry per tensor, got "
                f"{len(names)}, {len(dtypes)} and {len(shapes)}"
            )
        group = self._groups.get(group_name)
        if group is None:
            raise WeightUpdateError(f"group_name {group_name!r} is not joined; joined: {sorted(self._groups)}")
        try:
            kept = {
                name
                for name, shape in zip(names, shapes, strict=True)
                if check_tensor(self.engine.arch, self._shapes, name, tuple(shape))
            }
            metas = tuple(
                TensorMeta(name, _dtype_name(dtype), tuple(shape))
                for name, dtype, shape in zip(names, dtypes, shapes, strict=True)
            )
        except ModelError as error:
            raise WeightUpdateError(str(error)) from error
        meta = BucketMeta(metas, checksum or "")
        device = torch.device("cpu") if group.name() == "gloo" else self.engine.device
        if flattened:
            flat = torch.empty(meta.nbytes, dtype=torch.uint8, device=device)
            self._broadcast([flat], group_name)
            tensors = unflatten(meta, flat)
        else:
            tensors = [(m.name, torch.empty(m.shape, dtype=getattr(torch, m.dtype), device=device)) for m in metas]
            self._broadcast([tensor for _, tensor in tensors], group_name)
            flat = flatten(tensors)[1] if checksum is not None else torch.empty(0)
        if checksum is not None:
            self._verify(flat, checksum, names)
        return {name: tensor for name, tensor in tensors if name in kept}

    @staticmethod
    def _verify(flat: Tensor, checksum: str, names: Sequence[str]) -> None:
        from relax_engine.weight_sync.checksum import tensor_checksum

        actual = tensor_checksum([flat])
        if actual != checksum:
            raise WeightUpdateError(
                f"checksum of the bucket {names[0]!r}..{names[-1]!r} is {actual}, the sender says {checksum}: "
                "the update is dropped, the old weights stay"
            )

    def _broadcast(self, tensors: Sequence[Tensor], group_name: str) -> None:
        """Receive `tensors` from rank 0 under the deadline; a failure costs the group."""
        group, timeout = self._groups[group_name], datetime.timedelta(seconds=self.timeout_s)
        try:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, 0, group, async_op=True).wait(timeout)
        except RuntimeError as error:
            self._drop_group(group_name)
            raise WeightUpdateError(
                f"the broadcast in group {group_name!r} did not complete within {self.timeout_s:g} s: {error}; "
                "the group is left, join a new one"
            ) from error


def _dtype_name(name: str) -> str:
    """`float32` of `float32` or `torch.float32`.

    Raises:
        ModelError: not a floating-point dtype of torch.
    """
    short = str(name).removeprefix("torch.")
    dtype = getattr(torch, short, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ModelError(f"dtype {name!r} is not a floating-point dtype")
    return short
