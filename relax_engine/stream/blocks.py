"""Reading and writing blocks: the client's side of the storage units."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Sequence

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from relax_engine.stream.columns import ColumnBatch
from relax_engine.stream.delivery import Block, Delivery
from relax_engine.stream.errors import BlockLostError, StreamTimeoutError
from relax_engine.stream.payload import Payload, pack
from relax_engine.stream.rpc import settle
from relax_engine.stream.spans import describe

_RETRY_S = 0.2


class BlockStore:
    """Stores batches with the storage units in turn, and reads deliveries even when their producer is gone."""

    def __init__(self, controller: ray.actor.ActorHandle, units: Sequence[ray.actor.ActorHandle]) -> None:
        self._controller = controller
        self._units = list(units)
        self._prefix = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()

    def write(self, partition: str, batch: ColumnBatch) -> tuple[Block, ray.ObjectRef]:
        """Put a batch into the object store and ask a unit to hold it; returns the block and the unit's answer."""
        number = next(self._numbers)
        unit = number % len(self._units)
        ref = ray.put(pack(batch))
        block = Block(f"{self._prefix}-{number}", unit, batch.num_rows, batch.nbytes, ref)
        return block, self._units[unit].hold.remote(block.key, partition, [ref], ref)

    def read(self, delivery: Delivery, deadline_s: float) -> dict[str, Payload]:
        """The delivery's blocks, mapped from shared memory.

        Raises:
            BlockLostError: a block is gone with its producer and its storage unit.
            StreamTimeoutError: the object store did not answer in time.
        """
        end = time.monotonic() + deadline_s
        blocks = list(delivery.blocks.values())
        try:
            payloads = ray.get([block.ref for block in blocks], timeout=deadline_s)
            return {block.key: payload for block, payload in zip(blocks, payloads, strict=True)}
        except ObjectLostError:
            return {block.key: self._recover(delivery, block, end) for block in blocks}
        except GetTimeoutError as error:
            raise StreamTimeoutError(
                f"{len(blocks)} blocks of partition {delivery.partition!r} were not readable within {deadline_s:.1f} s"
            ) from error

    def _recover(self, delivery: Delivery, block: Block, end: float) -> Payload:
        """Read one block, from its storage unit if its producer is gone."""
        try:
            return ray.get(block.ref, timeout=max(0.0, end - time.monotonic()))
        except ObjectLostError as error:
            reason: Exception = error
        try:
            refs = self._republish(block, end)
            if refs:
                self._controller.moved.remote(delivery.partition, block.key, refs)
                return ray.get(refs[0], timeout=max(0.0, end - time.monotonic()))
        except (RayActorError, ObjectLostError) as error:
            reason = error
        left = max(1.0, end - time.monotonic())
        rows = settle(self._controller.lost.remote(delivery.partition, block.key), left, "report a lost block")
        raise BlockLostError(
            f"rows {describe(rows)} of partition {delivery.partition!r} are lost: block {block.key} died with its "
            f"producer and storage unit {block.unit} ({type(reason).__name__}); put the rows again with put_columns"
        ) from reason

    def _republish(self, block: Block, end: float) -> list[ray.ObjectRef]:
        """The unit's own reference to the block, waiting while the unit is being restarted."""
        while True:
            left = end - time.monotonic()
            try:
                return ray.get(self._units[block.unit].republish.remote(block.key), timeout=max(0.0, left))
            except ActorUnavailableError:
                if left < _RETRY_S:
                    raise
                time.sleep(_RETRY_S)
            except GetTimeoutError as error:
                raise StreamTimeoutError(f"storage unit {block.unit} did not answer for block {block.key}") from error


def unit_failure(held: ray.ObjectRef) -> BaseException | None:
    """The error of a storage unit that could not hold a block, None if it did (or has not answered)."""
    try:
        ray.get(held, timeout=0)
    except GetTimeoutError:
        return None
    except (RayActorError, RayTaskError) as error:
        return error
    return None
