"""Storage units: the processes that keep blocks alive.

A block is written into the node's object store once, by its producer, and read by consumers
without a copy. Ray ends an object with the process that created it, so each block is also *held*
by a storage unit: the unit maps the same shared memory (which pins it) and can publish it again
under its own name when the producer is gone. Holding copies nothing; republishing copies once.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

import ray

from relax_engine.stream.payload import Payload


class StorageUnit:
    """A Ray actor that holds blocks until their partition is dropped.

    `_held[key]` is (partition, payload view, reference): the view pins the memory, the reference
    keeps the object listed under its producer's name as long as the producer lives.
    """

    def __init__(self) -> None:
        self._incarnation = uuid.uuid4().hex
        self._held: dict[str, tuple[str, list[Payload], ray.ObjectRef]] = {}

    def incarnation(self) -> str:
        """Changes when the process was restarted, and with it lost what it held."""
        return self._incarnation

    def hold(self, key: str, partition: str, refs: Sequence[ray.ObjectRef], payload: list[Payload]) -> None:
        """Pin a block; `payload` is the value of `refs[0]`, mapped by Ray before this call."""
        self._held[key] = (partition, payload, refs[0])

    def republish(self, key: str) -> list[ray.ObjectRef]:
        """A reference owned by this process; empty when the block is not here."""
        if key not in self._held:
            return []
        partition, payload, _ = self._held[key]
        ref = ray.put(payload)
        self._held[key] = (partition, ray.get(ref), ref)
        return [ref]

    def discard(self, key: str) -> None:
        """Free one block; unknown keys are fine."""
        self._held.pop(key, None)

    def drop(self, partition: str) -> int:
        """Free the partition's blocks, those included that a killed producer never announced; returns their number."""
        keys = [key for key, (owner, _, _) in self._held.items() if owner == partition]
        for key in keys:
            del self._held[key]
        return len(keys)

    def report(self) -> dict[str, Any]:
        """Process id, incarnation, and how many objects are held of each partition."""
        counts: dict[str, int] = {}
        for partition, _, _ in self._held.values():
            counts[partition] = counts.get(partition, 0) + 1
        return {"pid": os.getpid(), "incarnation": self._incarnation, "held": counts}
