"""The stream's controller: an async Ray actor around the ledger and the admission gate.

It waits, wakes waiters and watches storage units. It sees row numbers and references, no payload.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray

from relax_engine.rollout.admission import AdmissionGate
from relax_engine.stream.delivery import Block, Delivery, PartitionInfo, PutItem, Stored, StreamStats
from relax_engine.stream.errors import StreamError, StreamTimeoutError
from relax_engine.stream.ledger import Outcome, StreamLedger
from relax_engine.stream.spans import Spans, describe

logger = logging.getLogger(__name__)

T = TypeVar("T")

_HEARTBEAT_S = 2.0
_UNIT_ANSWER_S = 30.0


def _report_end(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and watch.exception() is not None:
        logger.error("storage units are no longer watched", exc_info=watch.exception())


class StreamController:
    """Metadata of one stream.

    Every wait takes `wait_s` and ends in a `StreamTimeoutError` that says for whom it waited.
    """

    def __init__(
        self, units: Sequence[ray.actor.ActorHandle], *, row_budget: int, byte_budget: int, gate: dict[str, Any] | None
    ) -> None:
        self._units = list(units)
        self._ledger = StreamLedger(
            row_budget=row_budget, byte_budget=byte_budget, gate=AdmissionGate(**gate) if gate else None
        )
        self._changed = asyncio.Event()
        self._put_turn = asyncio.Lock()
        self._waiting_puts = 0
        self._incarnations: list[str] = []
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> list[str]:
        """Begin to watch the storage units; returns their incarnations."""
        self._incarnations = list(await asyncio.gather(*(unit.incarnation.remote() for unit in self._units)))
        self._watch = asyncio.create_task(self._watch_units())
        self._watch.add_done_callback(_report_end)
        return self._incarnations

    async def units(self) -> list[ray.actor.ActorHandle]:
        """The storage units' handles."""
        return self._units

    async def pid(self) -> int:
        """The controller's process id."""
        return os.getpid()

    # -- rows --------------------------------------------------------------------------------

    async def put(
        self,
        held: None,
        partition: str,
        stored: Stored,
        items: Sequence[PutItem],
    ) -> list[range | Exception]:
        """Make the batches of a held object visible, one after the other; a result or an error for each.

        A batch becomes visible as a whole, once per token, when the budget has room (first come,
        first served). `held` is the storage unit's answer: Ray delays and fails this call with
        it, so what is not held never becomes visible.
        """
        results: list[range | Exception] = []
        kept = False
        start = time.monotonic()
        for part, item in enumerate(items):
            block = stored.block(part, item.rows, item.nbytes)
            try:
                if not self._ledger.knows(partition, item.token) and (
                    self._waiting_puts or not self._ledger.fits(block)
                ):
                    await self._wait_for_room(partition, block, start, item.wait_s)
                results.append(self._ledger.put(partition, block, item, now=time.monotonic()))
                kept = kept or block.key in self._ledger.live(partition).blocks
            except (StreamError, ValueError) as error:
                results.append(error)
            self._notify()
        if not kept:
            self._units[stored.unit].discard.remote(stored.key)
        return results

    async def put_columns(
        self, held: None, partition: str, rows: Spans, stored: Stored, item: PutItem, task: str | None, seq: int
    ) -> None:
        """Add columns and, with `task`, commit its delivery `seq` in the same step."""
        kept = False
        block = stored.block(0, item.rows, item.nbytes)
        try:
            kept = self._ledger.put_columns(partition, rows, block, item.columns)
            if task is not None:
                self._ledger.live(partition).commit(task, seq)
        finally:
            if not kept:
                self._units[stored.unit].discard.remote(stored.key)
            self._notify()

    async def seal(self, partition: str, meta: dict[str, Any]) -> int:
        """No further rows; returns their number."""
        table = self._ledger.open(partition, time.monotonic())
        table.seal(meta)
        self._notify()
        return table.rows

    async def take(
        self,
        task: str,
        partition: str,
        seq: int,
        columns: Sequence[str],
        max_rows: int | None,
        min_rows: int | None,
        whole_groups: bool,
        commit: int | None,
        ahead: int,
        wait_s: float,
    ) -> list[Delivery]:
        """The delivery (task, partition, seq), see `PartitionTable.select`, and up to `ahead - 1` ready ones."""
        if commit is not None:
            self._ledger.live(partition).commit(task, commit)

        def attempt() -> list[Delivery] | None:
            table = self._ledger.find(partition)
            found: list[Delivery] = []
            while table is not None and len(found) < ahead and not (found and found[-1].end):
                delivery = table.select(
                    task,
                    seq + len(found),
                    columns,
                    max_rows=max_rows,
                    min_rows=min_rows,
                    whole_groups=whole_groups,
                    now=time.monotonic(),
                )
                if delivery is None:
                    break
                found.append(delivery)
            return found or None

        def explain(waited: float) -> str:
            what = self._ledger.explain_take(task, partition, seq, columns, time.monotonic())
            return f"task {task!r} waited {waited:.1f} s for seq {seq} of partition {partition!r}: {what}"

        return await self._until(attempt, wait_s, explain)

    async def commit(self, task: str, partition: str, seq: int) -> None:
        """The task finished deliveries up to `seq`."""
        self._ledger.live(partition).commit(task, seq)

    async def committed(self, task: str, partition: str) -> int:
        """Last committed sequence number, -1 for none; also for a partition nobody has put into."""
        table = self._ledger.find(partition)
        progress = {} if table is None else table.progress(time.monotonic())
        return progress[task].committed_seq if task in progress else -1

    async def reset_consumption(self, partition: str, task: str) -> None:
        """The task reads the partition from the start again."""
        table = self._ledger.find(partition)
        if table is not None:
            table.reset(task)
            self._notify()

    # -- ends --------------------------------------------------------------------------------

    async def drop(self, partition: str, outcome: Outcome, filtered: int, dropped_stale: int) -> bool:
        """End a partition and free its blocks; False when it was dropped before."""
        table = self._ledger.drop(partition, outcome, filtered=filtered, dropped_stale=dropped_stale)
        if table is not None:
            for unit in self._units:
                unit.drop.remote(partition)
            self._notify()
        return table is not None

    async def record(self, outcome: Outcome, samples: int, groups: Sequence[int]) -> None:
        """Account for samples that ended before they were put."""
        self._ledger.record(outcome, samples, groups)
        self._notify()

    # -- admission ---------------------------------------------------------------------------

    async def admit(self, groups: int, wait_s: float) -> list[int]:
        """Numbers for new groups, as soon as the gate has slots for all of them."""
        gate = self._gate()

        def explain(waited: float) -> str:
            now = time.monotonic()
            live = ", ".join(self._ledger.partitions) or "none"
            return (
                f"waited {waited:.1f} s for {groups} admission slots, {gate.free} are free: {gate.explain(now)}; "
                f"live partitions: {live}"
            )

        return await self._until(lambda: gate.try_admit(groups, time.monotonic()), wait_s, explain)

    async def assign(self, groups: Sequence[int], engine: str) -> None:
        """The engine that generates the groups, for messages."""
        for group in groups:
            self._gate().assign(group, engine, time.monotonic())

    async def finish_step(self, partition: str, version: int | None, dropped_stale: int) -> StreamStats:
        """What the actor reports after a step: the published version, and the end of its partition."""
        if version is not None:
            self._gate().set_version(version)
        await self.drop(partition, "trained", 0, dropped_stale)
        return self._ledger.stats()

    async def gate_state(self) -> dict[str, Any]:
        """The gate's part of a checkpoint."""
        return self._gate().state()

    async def recover_gate(self, version: int, next_group: int | None, pending: Sequence[int]) -> None:
        """Rebuild the gate after a restart."""
        self._gate().recover(version, next_group=next_group, pending=pending)
        self._notify()

    def _gate(self) -> AdmissionGate:
        if self._ledger.gate is None:
            raise ValueError("this stream has no admission gate; start it with max_staleness and groups_per_step")
        return self._ledger.gate

    # -- state -------------------------------------------------------------------------------

    async def stats(self) -> StreamStats:
        """The counters now."""
        return self._ledger.stats()

    async def partitions(self) -> list[PartitionInfo]:
        """Live partitions, oldest first."""
        return self._ledger.info(time.monotonic())

    async def wait_partition(self, partition: str, state: str, wait_s: float) -> None:
        """Return when the partition exists, is sealed, or was dropped."""

        def attempt() -> bool | None:
            if self._ledger.was_dropped(partition):
                return True
            table = self._ledger.find(partition)
            if table is None or state == "dropped":
                return None
            return True if state == "exists" or table.sealed else None

        def explain(waited: float) -> str:
            live = [(info.name, info.rows, "sealed" if info.sealed else "open") for info in self._ledger.info(0.0)]
            return f"waited {waited:.1f} s for partition {partition!r} to be {state}; live partitions: {live or 'none'}"

        await self._until(attempt, wait_s, explain)

    # -- blocks ------------------------------------------------------------------------------

    async def moved(self, partition: str, key: str, refs: Sequence[ray.ObjectRef]) -> None:
        """A storage unit republished a stored object whose producer is gone."""
        table = self._ledger.partitions.get(partition)
        if table is not None:
            for block in [block for block in table.blocks.values() if block.stored == key]:
                table.blocks[block.key] = block._replace(ref=refs[0])

    async def lost(self, partition: str, key: str) -> Spans:
        """A stored object is gone; returns the rows that must be put again."""
        if self._ledger.was_dropped(partition):
            return ()
        rows = self._ledger.lose(partition, key)
        self._notify()
        return rows

    async def _watch_units(self) -> None:
        """Give a restarted unit its blocks again while their producers live; report those that are lost."""
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            for index, unit in enumerate(self._units):
                try:
                    incarnation: str = await asyncio.wait_for(unit.incarnation.remote(), _UNIT_ANSWER_S)
                except (ray.exceptions.RayActorError, TimeoutError) as error:
                    logger.warning("storage unit %d does not answer: %s", index, type(error).__name__)
                    continue
                if incarnation != self._incarnations[index]:
                    logger.warning("storage unit %d was restarted; its blocks are held again", index)
                    await self._hold_again(index)
                    self._incarnations[index] = incarnation

    async def _hold_again(self, index: int) -> None:
        for table in list(self._ledger.partitions.values()):
            stored = {block.stored: block.ref for block in table.blocks.values() if block.unit == index}
            calls = [self._units[index].hold.remote(key, table.name, [ref], ref) for key, ref in stored.items()]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for key, answer in zip(stored, answers, strict=True):
                if isinstance(answer, BaseException):
                    rows = await self.lost(table.name, key)
                    logger.error(
                        "partition %s: rows %s are lost with storage unit %d; put them again",
                        table.name,
                        describe(rows),
                        index,
                    )

    # -- waiting -----------------------------------------------------------------------------

    async def _wait_for_room(self, partition: str, block: Block, start: float, wait_s: float) -> None:
        def explain(waited: float) -> str:
            what = self._ledger.explain_put(block, time.monotonic())
            return f"put into partition {partition!r} waited {waited:.1f} s: {what}"

        left = wait_s - (time.monotonic() - start)
        self._waiting_puts += 1
        try:
            async with asyncio.timeout(left), self._put_turn:
                await self._until(lambda: True if self._ledger.fits(block) else None, left, explain)
        except TimeoutError:
            raise StreamTimeoutError(explain(time.monotonic() - start)) from None
        finally:
            self._waiting_puts -= 1

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, attempt: Callable[[], T | None], wait_s: float, explain: Callable[[float], str]) -> T:
        """The first answer of `attempt` that is not None, tried after every change."""
        start = time.monotonic()
        while True:
            answer = attempt()
            if answer is not None:
                return answer
            left = wait_s - (time.monotonic() - start)
            try:
                await asyncio.wait_for(self._changed.wait(), max(left, 0.0))
            except TimeoutError:
                raise StreamTimeoutError(explain(time.monotonic() - start)) from None
