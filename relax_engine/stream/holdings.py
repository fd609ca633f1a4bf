"""Where blocks are: references to them, and the watch over the storage units that hold them.

The controller's own knowledge is which rows lie in which block; this is what Ray knows of the blocks,
which is gone with the controller's process and asked of the units again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import ray

from relax_engine.stream.delivery import Block, Delivery, Stored
from relax_engine.stream.spans import Spans, describe
from relax_engine.stream.table import PartitionTable

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 2.0
_UNIT_ANSWER_S = 30.0
_RETRY_S = 0.2


class Holdings:
    """References by partition and stored object, and the units' incarnations.

    `tables` gives the live partitions; `lost(partition, key)` is told of an object that nobody has any more.
    """

    def __init__(
        self,
        units: Sequence[ray.actor.ActorHandle],
        tables: Callable[[], Sequence[PartitionTable]],
        lost: Callable[[str, str], Awaitable[Spans]],
    ) -> None:
        self.units = list(units)
        self._tables = tables
        self._lost = lost
        self._refs: dict[str, dict[str, ray.ObjectRef]] = {}
        self._incarnations: dict[int, str] = {}
        self._watch: asyncio.Task[None] | None = None

    # -- references --------------------------------------------------------------------------

    def add(self, partition: str, stored: Stored) -> None:
        """A unit holds an object."""
        self._refs.setdefault(partition, {})[stored.key] = stored.ref

    def moved(self, partition: str, key: str, ref: ray.ObjectRef) -> None:
        """An object is known under another reference."""
        self._refs.setdefault(partition, {})[key] = ref

    def forget(self, partition: str, key: str) -> None:
        """An object is gone."""
        self._refs.get(partition, {}).pop(key, None)

    async def resolve(self, delivery: Delivery) -> Delivery:
        """The delivery with references, asked of the units where they are not known.

        A block that no unit has is left without: who reads it reports it.
        """
        if delivery.end:
            return delivery
        for block in delivery.blocks.values():
            if block.stored not in self._refs.get(delivery.partition, {}):
                await self._locate(delivery.partition, block)
        refs = self._refs.get(delivery.partition, {})
        blocks = {key: block._replace(ref=refs.get(block.stored)) for key, block in delivery.blocks.items()}
        return replace(delivery, blocks=blocks)

    async def _locate(self, partition: str, block: Block) -> None:
        end = time.monotonic() + _UNIT_ANSWER_S
        while True:
            try:
                refs = await self.units[block.unit].locate.remote(block.stored, partition)
                break
            except ray.exceptions.RayActorError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(_RETRY_S)
        if refs:
            self.moved(partition, block.stored, refs[0])

    # -- ends --------------------------------------------------------------------------------

    def discard(self, partition: str, stored: Stored) -> None:
        """Nobody needs an object."""
        self.forget(partition, stored.key)
        self.units[stored.unit].discard.remote(stored.key, partition)

    def release(self, partition: str) -> None:
        """Free a partition's memory; it may be asked for again where units have a spool."""
        self._refs.pop(partition, None)
        for unit in self.units:
            unit.release.remote(partition)

    def drop(self, partition: str) -> None:
        """Free a partition for good."""
        self._refs.pop(partition, None)
        for unit in self.units:
            unit.drop.remote(partition)

    # -- the units ---------------------------------------------------------------------------

    def watch(self) -> None:
        """Begin to watch the units; later calls do nothing."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_units())
            self._watch.add_done_callback(_report_end)

    async def _watch_units(self) -> None:
        """Give a restarted unit its blocks again; report those that are lost."""
        while True:
            for index, unit in enumerate(self.units):
                try:
                    incarnation: str = await asyncio.wait_for(unit.incarnation.remote(), _UNIT_ANSWER_S)
                except (ray.exceptions.RayActorError, TimeoutError) as error:
                    logger.warning("storage unit %d does not answer: %s", index, type(error).__name__)
                    continue
                if self._incarnations.setdefault(index, incarnation) != incarnation:
                    logger.warning("storage unit %d was restarted; its blocks are held again", index)
                    for table in self._tables():
                        await self._hold_again(index, table)
                    self._incarnations[index] = incarnation
            await asyncio.sleep(_HEARTBEAT_S)

    async def _hold_again(self, index: int, table: PartitionTable) -> None:
        """While their producers live, from them; else what the unit finds in its spool."""
        refs = self._refs.get(table.name, {})
        blocks = {b.stored: b for b in table.blocks.values() if b.unit == index and b.stored in refs}
        calls = [self.units[index].hold.remote(key, table.name, [refs[key]], refs[key]) for key in blocks]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for (key, block), answer in zip(blocks.items(), answers, strict=True):
            if not isinstance(answer, BaseException):
                continue
            self.forget(table.name, key)
            await self._locate(table.name, block)
            if key not in self._refs.get(table.name, {}):
                rows = await self._lost(table.name, key)
                logger.error(
                    "partition %s: rows %s are lost with storage unit %d; put them again",
                    table.name,
                    describe(rows),
                    index,
                )


def _report_end(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and watch.exception() is not None:
        logger.error("storage units are no longer watched", exc_info=watch.exception())
