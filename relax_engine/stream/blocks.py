"""Reading and writing stored objects: the client's side of the storage units."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Sequence
from threading import Lock

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from relax_engine.stream.columns import ColumnBatch
from relax_engine.stream.delivery import Block, Delivery, Stored
from relax_engine.stream.errors import BlockLostError, StreamTimeoutError
from relax_engine.stream.payload import Packer, Payload
from relax_engine.stream.rpc import RETRY_S, ask
from relax_engine.stream.spans import describe

OBJECT_BYTES = 32 << 20
"""Batches that wait for each other become one object up to this size; a larger batch is an object by itself."""


class _Unlocated(Exception):
    """No storage unit had the block when it was delivered."""


class BlockStore:
    """Stores batches with the storage units in turn, and reads deliveries even when their producer is gone."""

    def __init__(self, controller: ray.actor.ActorHandle, units: Sequence[ray.actor.ActorHandle]) -> None:
        self._controller = controller
        self._units = list(units)
        self._prefix = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._recent: tuple[str, Payload] | None = None
        self._packer = Packer(OBJECT_BYTES)
        self._packing = Lock()

    def write(self, partition: str, batches: Sequence[ColumnBatch]) -> tuple[Stored, ray.ObjectRef]:
        """Put batches into the object store as one object that a unit holds; returns it and the unit's answer."""
        number = next(self._numbers)
        unit = number % len(self._units)
        with self._packing:
            ref = ray.put(self._packer.pack(batches))
        stored = Stored(f"{self._prefix}-{number}", unit, ref)
        return stored, self._units[unit].hold.remote(stored.key, partition, [ref], ref)

    def read(self, delivery: Delivery, deadline_s: float) -> dict[str, Payload]:
        """The objects that the delivery's blocks are part of, mapped; the one read last is kept mapped.

        Raises:
            BlockLostError: a block is gone with its producer and its storage unit.
            StreamTimeoutError: the object store did not answer in time.
        """
        end = time.monotonic() + deadline_s
        found = dict([self._recent] if self._recent else [])
        absent = {block.stored: block for block in delivery.blocks.values() if block.stored not in found}
        if absent:
            try:
                if any(block.ref is None for block in absent.values()):
                    raise _Unlocated
                objects = ray.get([block.ref for block in absent.values()], timeout=deadline_s)
                found.update(zip(absent, objects, strict=True))
            except (ObjectLostError, _Unlocated):
                found.update({key: self._recover(delivery, block, end) for key, block in absent.items()})
            except GetTimeoutError as error:
                raise StreamTimeoutError(
                    f"{len(absent)} objects of partition {delivery.partition!r} were not readable "
                    f"within {deadline_s:.1f} s"
                ) from error
            self._recent = next(reversed(found.items()))
        return found

    def forget(self) -> None:
        """Unmap the object read last."""
        self._recent = None

    def _recover(self, delivery: Delivery, block: Block, end: float) -> Payload:
        """Read one object, from its storage unit if its producer is gone."""
        reason: Exception = _Unlocated()
        if block.ref is not None:
            try:
                return ray.get(block.ref, timeout=max(0.0, end - time.monotonic()))
            except ObjectLostError as error:
                reason = error
        try:
            refs = self._republish(delivery.partition, block, end)
            if refs:
                self._controller.moved.remote(delivery.partition, block.stored, refs)
                return ray.get(refs[0], timeout=max(0.0, end - time.monotonic()))
        except (RayActorError, ObjectLostError) as error:
            reason = error
        left = max(1.0, end - time.monotonic())
        partition = delivery.partition
        ask(lambda _: self._controller.lost.remote(partition, block.stored), left, "report a lost block")
        raise BlockLostError(
            f"rows {describe(delivery.rows_in(block.stored))} of partition {partition!r} are lost: "
            f"object {block.stored} died with its producer and storage unit {block.unit} "
            f"({type(reason).__name__}); put the rows again with put_columns"
        ) from reason

    def _republish(self, partition: str, block: Block, end: float) -> list[ray.ObjectRef]:
        """The unit's own reference to the object, waiting while the unit is being restarted."""
        while True:
            left = end - time.monotonic()
            try:
                answer: ray.ObjectRef = self._units[block.unit].republish.remote(block.stored, partition)
                return ray.get(answer, timeout=max(0.0, left))
            except ActorUnavailableError:
                if left < RETRY_S:
                    raise
                time.sleep(RETRY_S)
            except GetTimeoutError as error:
                raise StreamTimeoutError(f"storage unit {block.unit} did not answer for {block.stored}") from error


def unit_failure(held: ray.ObjectRef) -> BaseException | None:
    """The error of a storage unit that could not hold an object, None if it did (or has not answered)."""
    try:
        ray.get(held, timeout=0)
    except GetTimeoutError:
        return None
    except (RayActorError, RayTaskError) as error:
        return error
    return None
