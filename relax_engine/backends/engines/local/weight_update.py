"""Receiving weights: update groups, the begin/end transaction, loading from disk.

Runs in a worker thread of the server while the engine keeps its own thread; only the final adoption is a
command to the engine. What does not live here: where tensors come from (`weight_sources.py`), the sending side
(`relax_engine.weight_sync.sender`).
"""

from __future__ import annotations

import datetime
import enum
import logging
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from relax_engine.backends.engines.local.engine import LocalEngine
from relax_engine.backends.engines.local.errors import ModelError, WeightUpdateError
from relax_engine.backends.engines.local.weight_sources import Arrived, Arriving, copy_shared, read_model, read_stored
from relax_engine.backends.engines.local.weights import check_tensor, expected_shapes
from relax_engine.weight_sync.arrival import DamagedBucketError, HeldWeights, arrival_buffer, unpack, verify
from relax_engine.weight_sync.buckets import unflatten
from relax_engine.weight_sync.buffers import BufferPool
from relax_engine.weight_sync.shared import SharedReader

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
        self._held = HeldWeights()
        self._buffers = BufferPool()
        self._shared = SharedReader()
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
        """Open a transaction; what an unfinished one had staged is dropped.

        Returns the digest of the weights that are served, empty where their sender's checksums are not known.
        """
        with self._lock:
            if self.state is UpdateState.OPEN:
                logger.warning("weight update begins again, %d staged tensors dropped", len(self._staged))
            self._reset(UpdateState.OPEN)
            return self._held.base

    def receive(
        self,
        bucket: Arriving,
        group_name: str,
        *,
        flattened: bool,
        version: str | None,
        flush: bool,
    ) -> str:
        """Take part in the broadcast of one bucket from rank 0, verify it and stage it.

        Raises:
            WeightUpdateError: outside begin/end, unknown tensor, broadcast failed, checksum differs. After
                `begin` each of them fails the transaction.
        """
        return self._stage(lambda: self._receive(bucket, group_name, flattened), version, flush)

    def receive_shared(self, serialized: bytes, checksum: str, *, version: str | None, flush: bool) -> str:
        """Copy the tensors behind handles of shared memory, verify and stage them.

        Raises:
            WeightUpdateError: as `receive`.
        """
        return self._stage(
            lambda: copy_shared(self._shared.open(serialized), checksum, self.engine.arch, self._buffers),
            version,
            flush,
        )

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
            self._held.adopt()
            self._reset(UpdateState.CLOSED)
        return f"adopted {len(staged)} tensors as version {self.engine.scheduler.version!r}"

    def load(self, place: str, *, version: str | None, flush: bool) -> str:
        """Load a model directory of the same architecture, or a version of a weight store.

        Inside begin/end the tensors are staged, else they are adopted at once. Of a stored version only what differs
        from the served weights is read.

        Raises:
            WeightUpdateError: it cannot be read or its tensors differ; the engine keeps its weights.
        """
        from relax_engine.weight_sync.store import WeightStoreError, is_stored_version

        with self._lock:
            try:
                if is_stored_version(place):
                    tensors, held = read_stored(place, self._held.digests, self.engine.arch)
                else:
                    tensors, held = read_model(place, self.engine.arch, self.engine.dtype), None
            except (ModelError, WeightStoreError) as error:
                if self.state is UpdateState.OPEN:
                    self._reset(UpdateState.FAILED)
                raise WeightUpdateError(str(error)) from error
            if self.state is UpdateState.OPEN:
                self._staged.update(tensors)
                self._held.stage(held)
                self._flush, self._version = self._flush or flush, version
            else:
                adopted = self.engine.call(lambda: self.engine.adopt_weights(tensors, version, flush=flush))
                adopted.result(timeout=self.timeout_s)
                self._held.replace(held or {})
        return f"loaded {len(tensors)} tensors from {place}"

    def join_late(self, store: str) -> bool:
        """Load the newest version of the weight store at `store`; False where it has none yet.

        Raises:
            WeightUpdateError: it cannot be read, or is of another model.
        """
        from relax_engine.weight_sync.store import WeightStoreError, latest_version, read_version

        try:
            url = latest_version(store)
            version = None if url is None else str(read_version(url, {})[0].version)
        except WeightStoreError as error:
            raise WeightUpdateError(str(error)) from error
        if url is not None:
            self.load(url, version=version, flush=True)
        return url is not None

    @property
    def buffer_nbytes(self) -> int:
        """Bytes of the buffers that received weights are in, or that are kept for the next ones."""
        return self._buffers.nbytes

    def trim(self) -> None:
        """Give back the memory that was kept for the next transfer."""
        with self._lock:
            self._buffers.trim()
            self._shared.close()

    def close(self) -> None:
        """Leave all groups."""
        with self._lock:
            for name in list(self._groups):
                self._drop_group(name)

    def _reset(self, state: UpdateState) -> None:
        self.state, self._staged, self._version, self._flush = state, {}, None, False
        self._held.drop_staged()

    def _drop_group(self, name: str) -> None:
        from relax_engine.weight_sync.group import leave_group

        leave_group(self._groups.pop(name))

    def _stage(
        self,
        receive: Callable[[], Arrived],
        version: str | None,
        flush: bool,
    ) -> str:
        with self._lock:
            if self.state is not UpdateState.OPEN:
                raise WeightUpdateError(
                    f"the weight update is {self.state}: call /begin_weight_update before sending weights"
                )
            try:
                named, digests = receive()
            except (ModelError, DamagedBucketError, ValueError) as error:
                self._reset(UpdateState.FAILED)
                raise WeightUpdateError(str(error)) from error
            except WeightUpdateError:
                self._reset(UpdateState.FAILED)
                raise
            self._staged.update({name: tensor for name, tensor in named if self._keeps(name, tensor.shape)})
            self._held.stage(digests)
            self._flush = self._flush or flush
            self._version = version if version is not None else self._version
        return f"staged {len(named)} tensors"

    def _keeps(self, name: str, shape: Sequence[int]) -> bool:
        return check_tensor(self.engine.arch, self._shapes, name, tuple(shape))

    def _receive(self, bucket: Arriving, group_name: str, flattened: bool) -> Arrived:
        group = self._groups.get(group_name)
        if group is None:
            raise WeightUpdateError(f"group_name {group_name!r} is not joined; joined: {sorted(self._groups)}")
        meta = bucket.meta()
        for tensor in meta.tensors:
            self._keeps(tensor.name, tensor.shape)
        if flattened:
            payload = arrival_buffer(meta.payload_nbytes, group.name(), self._buffers)
            self._broadcast([payload], group_name)
            return unpack(meta, payload) if meta.checksum else (unflatten(meta, payload), None)
        device = torch.device("cpu") if group.name() == "gloo" else self.engine.device
        named = [(m.name, torch.empty(m.shape, dtype=getattr(torch, m.dtype), device=device)) for m in meta.tensors]
        self._broadcast([tensor for _, tensor in named], group_name)
        return named, verify(meta, named) if meta.checksum else None

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
