"""Storage units: the processes that keep blocks alive.

A block is written into the node's object store once, by its producer, and read by consumers
without a copy. Ray ends an object with the process that created it, so each block is also *held*
by a storage unit: the unit maps the same shared memory (which pins it) and can publish it again
under its own name when the producer is gone. Holding copies nothing; republishing copies once.
A unit with a spool writes each block to a file as well, and finds it there when it was restarted.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from relax_engine.stream.payload import Payload
from relax_engine.stream.spool import Spool


class StorageUnit:
    """A Ray actor that holds blocks until their partition is dropped.

    `_held[key]` is (partition, payload view, reference): the view pins the memory, the reference
    keeps the object listed under its producer's name as long as the producer lives.
    """

    def __init__(self, spool: Path | None = None) -> None:
        self._incarnation = uuid.uuid4().hex
        self._held: dict[str, tuple[str, Payload, ray.ObjectRef]] = {}
        self._spool = None if spool is None else Spool(spool)

    def incarnation(self) -> str:
        """Changes when the process was restarted, and with it lost what it held."""
        return self._incarnation

    def hold(self, key: str, partition: str, refs: Sequence[ray.ObjectRef], payload: Payload) -> None:
        """Pin a block; `payload` is the value of `refs[0]`, mapped by Ray before this call."""
        if self._spool is not None:
            self._spool.write(partition, key, payload)
        self._held[key] = (partition, payload, refs[0])

    def locate(self, key: str, partition: str) -> list[ray.ObjectRef]:
        """The reference under which a block is held, else as `republish`."""
        return [self._held[key][2]] if key in self._held else self.republish(key, partition)

    def republish(self, key: str, partition: str) -> list[ray.ObjectRef]:
        """A reference owned by this process; empty when the block is neither here nor in the spool."""
        payload = self._held[key][1] if key in self._held else None
        if payload is None and self._spool is not None:
            payload = self._spool.read(partition, key)
        if payload is None:
            return []
        ref = ray.put(payload)
        self._held[key] = (partition, ray.get(ref), ref)
        return [ref]

    def discard(self, key: str, partition: str) -> None:
        """Free one block; unknown keys are fine."""
        self._held.pop(key, None)
        if self._spool is not None:
            self._spool.discard(partition, key)

    def release(self, partition: str) -> int:
        """Free the partition's memory, its files stay; returns the number of blocks.

        Blocks that a killed producer never announced are among them.
        """
        keys = [key for key, (owner, _, _) in self._held.items() if owner == partition]
        for key in keys:
            del self._held[key]
        return len(keys)

    def drop(self, partition: str) -> int:
        """`release`, and end the partition in the spool."""
        if self._spool is not None:
            self._spool.drop(partition)
        return self.release(partition)

    def report(self) -> dict[str, Any]:
        """Process id, incarnation, and how many objects are held of each partition."""
        counts: dict[str, int] = {}
        for partition, _, _ in self._held.values():
            counts[partition] = counts.get(partition, 0) + 1
        return {"pid": os.getpid(), "incarnation": self._incarnation, "held": counts}
