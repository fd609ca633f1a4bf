"""The receiving side in a training rank: verified buckets become one stream of tensors for the model."""

from __future__ import annotations

import datetime
import queue
import threading
from collections.abc import Callable, Iterable, Iterator

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from relax_engine.weight_sync.arrival import HeldWeights, arrival_buffer, take_copy, unpack
from relax_engine.weight_sync.buffers import BufferPool
from relax_engine.weight_sync.group import join_group, leave_group
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, SharedTensors, Source
from relax_engine.weight_sync.shared import SharedReader
from relax_engine.weight_sync.store import read_version

Named = Iterable[tuple[str, Tensor]]

_AHEAD = 8


class WeightInbox:
    """Feeds received tensors to `load`, and at the end those that were not sent because the model has them.

    CLOSED -> OPEN (`begin`) -> CLOSED (`end`); `begin` again drops what was received. `current` yields the model's
    own tensors; it may be collective over the ranks, so every rank gets the same buckets. Unlike an engine's, the
    model is overwritten while buckets come: it is not to be used until `end` returns.
    """

    def __init__(self, load: Callable[[Named], None], current: Callable[[], Named], *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._load, self._current = load, current
        self._groups: dict[str, ProcessGroup] = {}
        self._held = HeldWeights()
        self._buffers = BufferPool()
        self._shared = SharedReader()
        self._tensors: queue.Queue[tuple[str, Tensor] | None] = queue.Queue(_AHEAD)
        self._loader: threading.Thread | None = None
        self._error: BaseException | None = None

    def join(self, address: GroupAddress, rank: int) -> None:
        """Enter a weight-update group."""
        self._groups[address.name] = join_group(address, rank, timeout_s=self.timeout_s)

    def leave(self, name: str) -> None:
        """Leave the group `name`, if this rank is in it."""
        group = self._groups.pop(name, None)
        if group is not None:
            leave_group(group)

    def begin(self) -> str:
        """Open an update; returns the digest of the weights that the model has, empty where unknown."""
        if self._loader is not None:
            self._finish()
            # An unfinished update left a mixture.
            self._held.replace({})
        base = self._held.base
        self._error = None
        self._tensors = queue.Queue(_AHEAD)
        self._loader = threading.Thread(target=self._consume, args=(self._tensors,), name="weight-inbox", daemon=True)
        self._loader.start()
        return base

    def receive(self, meta: BucketMeta, source: Source) -> None:
        """Take one bucket.

        Raises:
            DamagedBucketError: it is not what was sent.
        """
        if isinstance(source, SharedTensors):
            named, digests = take_copy(meta, self._shared.open(source.serialized), self._buffers)
        else:
            payload = arrival_buffer(meta.payload_nbytes, source.backend, self._buffers)
            work = dist.broadcast(payload, 0, self._groups[source.name], async_op=True)
            work.wait(datetime.timedelta(seconds=self.timeout_s))
            named, digests = unpack(meta, payload)
        self._held.stage(digests)
        self._put(named)

    def pull(self, url: str) -> None:
        """Read what differs from the model of the version stored at `url`.

        Raises:
            WeightStoreError: it cannot be read.
        """
        manifest, tensors = read_version(url, self._held.digests)
        self._put(tensors)
        held = self._held.digests
        self._held.stage({name: digest for name, digest in manifest.digests.items() if held.get(name) != digest})

    def end(self) -> None:
        """Close the update: every tensor that the model needs has come, or was there already.

        Raises:
            WeightMappingError: one is missing or of the wrong shape; the model is partly overwritten.
        """
        kept = self._held.digests.keys() - self._held.staged.keys()
        if kept and self._error is None:
            self._put((name, tensor) for name, tensor in self._current() if name in kept)
        self._finish()
        if self._error is not None:
            self._held.replace({})
            raise self._error
        self._held.adopt()

    def _put(self, named: Named) -> None:
        for pair in named:
            while self._error is None:
                try:
                    self._tensors.put(pair, timeout=0.1)
                    break
                except queue.Full:
                    continue

    def _consume(self, tensors: queue.Queue[tuple[str, Tensor] | None]) -> None:
        try:
            self._load(_until_none(tensors))
        except BaseException as error:  # noqa: BLE001 - raised again in end()
            self._error = error

    def _finish(self) -> None:
        if self._loader is not None:
            while self._loader.is_alive():
                try:
                    self._tensors.put(None, timeout=0.1)
                    break
                except queue.Full:
                    continue
            self._loader.join()
            self._loader = None


def _until_none(tensors: queue.Queue[tuple[str, Tensor] | None]) -> Iterator[tuple[str, Tensor]]:
    while (item := tensors.get()) is not None:
        yield item
