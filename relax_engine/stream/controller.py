"""The stream's controller: an async Ray actor around the ledger and the admission gate.

It waits, wakes waiters, watches storage units and, with a journal, comes back after it died. It sees
row numbers and references, no payload.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray

from relax_engine.rollout.admission import AdmissionGate
from relax_engine.stream.delivery import (
    Block,
    Delivery,
    PartitionInfo,
    ProducerState,
    PutItem,
    Stored,
    StreamStats,
)
from relax_engine.stream.errors import StreamError, StreamTimeoutError
from relax_engine.stream.holdings import Holdings
from relax_engine.stream.journal import Journal
from relax_engine.stream.ledger import Outcome, StreamLedger
from relax_engine.stream.spans import Spans
from relax_engine.stream.table import PartitionTable

T = TypeVar("T")


class StreamController:
    """Metadata of one stream, whose storage units are the Ray actors that `units` names.

    Every wait takes `wait_s` and ends in a `StreamTimeoutError` that says for whom it waited.

    With a `journal` directory every change of the ledger is on disk before its caller is answered,
    and a restarted controller goes on from there. References to blocks are not in the ledger: they
    are asked of the storage units when a delivery needs one that is not known.
    """

    def __init__(
        self,
        units: Sequence[str],
        *,
        row_budget: int,
        byte_budget: int,
        gate: dict[str, Any] | None,
        journal: Path | None = None,
    ) -> None:
        def fresh() -> StreamLedger:
            admission = AdmissionGate(**gate) if gate else None
            return StreamLedger(row_budget=row_budget, byte_budget=byte_budget, gate=admission)

        self._journal = None if journal is None else Journal(journal)
        self._ledger = fresh() if self._journal is None else self._journal.load(fresh)
        self._holdings = Holdings([ray.get_actor(unit) for unit in units], self._tables, self.lost)
        self._producers = 0
        self._changed = asyncio.Event()
        self._put_turn = asyncio.Lock()
        self._waiting_puts = 0

    async def start(self) -> None:
        """Begin to watch the storage units; the second and later calls do nothing."""
        self._holdings.watch()

    async def units(self) -> list[ray.actor.ActorHandle]:
        """The storage units' handles."""
        return self._holdings.units

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
        self._holdings.watch()
        producer = self._producers
        results: list[range | Exception] = []
        kept = False
        self._holdings.add(partition, stored)
        start = time.monotonic()
        for part, item in enumerate(items):
            block = stored.block(part, item.rows, item.nbytes)
            try:
                if not self._ledger.knows(partition, item.token) and (
                    self._waiting_puts or not self._ledger.fits(block)
                ):
                    await self._wait_for_room(partition, block, start, item.wait_s)
                    self._require_producer(producer)
                results.append(self._do("put", partition, block, item, now=time.monotonic()))
                kept = kept or block.key in self._ledger.live(partition).blocks
            except (StreamError, ValueError) as error:
                results.append(error)
            self._notify()
        if not kept:
            self._holdings.discard(partition, stored)
        return results

    async def put_columns(
        self, held: None, partition: str, rows: Spans, stored: Stored, item: PutItem, task: str | None, seq: int
    ) -> None:
        """Add columns and, with `task`, commit its delivery `seq` in the same step."""
        self._holdings.watch()
        kept = False
        block = stored.block(0, item.rows, item.nbytes)
        self._holdings.add(partition, stored)
        try:
            kept = self._do("put_columns", partition, rows, block, item.columns)
            if task is not None:
                self._do("commit", partition, task, seq)
        finally:
            if not kept:
                self._holdings.discard(partition, stored)
            self._notify()

    async def seal(self, partition: str, meta: dict[str, Any]) -> int:
        """No further rows; returns their number."""
        rows: int = self._do("seal", partition, meta, time.monotonic())
        self._notify()
        return rows

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
        self._holdings.watch()
        if commit is not None:
            self._do("commit", partition, task, commit)

        def attempt() -> list[Delivery] | None:
            found: list[Delivery] = []
            while len(found) < ahead and not (found and found[-1].end):
                request = (partition, task, seq + len(found), columns, max_rows, min_rows, whole_groups)
                delivery, new = self._ledger.select(*request, time.monotonic())
                if new:
                    self._record("select", *request, 0.0)
                if delivery is None:
                    break
                found.append(delivery)
            return found or None

        def explain(waited: float) -> str:
            what = self._ledger.explain_take(task, partition, seq, columns, time.monotonic())
            return f"task {task!r} waited {waited:.1f} s for seq {seq} of partition {partition!r}: {what}"

        found = await self._until(attempt, wait_s, explain)
        return [await self._holdings.resolve(delivery) for delivery in found]

    async def commit(self, task: str, partition: str, seq: int) -> None:
        """The task finished deliveries up to `seq`."""
        self._do("commit", partition, task, seq)

    async def committed(self, task: str, partition: str) -> int:
        """Last committed sequence number, -1 for none; also for a partition nobody has put into."""
        table = self._ledger.find(partition)
        progress = {} if table is None else table.progress(time.monotonic())
        return progress[task].committed_seq if task in progress else -1

    async def reset_consumption(self, partition: str, task: str) -> None:
        """The task reads the partition from the start again."""
        self._do("reset", partition, task)
        self._notify()

    # -- ends --------------------------------------------------------------------------------

    async def drop(self, partition: str, outcome: Outcome, filtered: int, dropped_stale: int) -> bool:
        """End a partition and free its blocks; False when it was dropped before."""
        table = self._do("drop", partition, outcome, filtered=filtered, dropped_stale=dropped_stale)
        if table is not None:
            self._holdings.drop(partition)
            self._notify()
        return table is not None

    async def record(self, outcome: Outcome, samples: int, groups: Sequence[int], token: str) -> None:
        """Account for samples that ended before they were put."""
        self._do("record", outcome, samples, groups, token)
        self._notify()

    # -- admission ---------------------------------------------------------------------------

    async def admit(self, groups: int, token: str, wait_s: float) -> list[int]:
        """Numbers for new groups, as soon as the gate has slots for all of them; the same for the same token."""
        gate = self._ledger.admission
        producer = self._producers

        def attempt() -> list[int] | None:
            self._require_producer(producer)
            now = time.monotonic()
            numbers = self._ledger.admit(groups, token, now)
            if numbers is not None:
                self._record("admit", groups, token, now)
            return numbers

        def explain(waited: float) -> str:
            now = time.monotonic()
            live = ", ".join(self._ledger.partitions) or "none"
            return (
                f"waited {waited:.1f} s for {groups} admission slots, {gate.free} are free: {gate.explain(now)}; "
                f"live partitions: {live}"
            )

        return await self._until(attempt, wait_s, explain)

    async def withdraw(self) -> ProducerState:
        """A new producer takes over; what the old one waits for, it does not get."""
        self._producers += 1
        state: ProducerState = self._do("withdraw")
        self._notify()
        return state

    def _require_producer(self, producer: int) -> None:
        """Refuse what a producer waited for that was replaced meanwhile."""
        if producer != self._producers:
            raise StreamError("another producer has taken over from the one that asked")

    async def assign(self, groups: Sequence[int], engine: str) -> None:
        """The engine that generates the groups, for messages."""
        for group in groups:
            self._ledger.admission.assign(group, engine, time.monotonic())

    async def finish_step(self, partition: str, version: int | None, dropped_stale: int, retain: bool) -> StreamStats:
        """What the actor reports after a step: the published version, and the end of its partition."""
        gone: list[str] = self._do("finish", partition, version, dropped_stale, retain=retain)
        for name in gone:
            self._holdings.drop(name)
        if retain:
            self._holdings.release(partition)
        self._notify()
        return self._ledger.stats()

    async def gate_state(self) -> dict[str, Any]:
        """The gate's part of a checkpoint."""
        return self._ledger.admission.state()

    async def recover_gate(self, version: int, next_group: int | None, pending: Sequence[int]) -> None:
        """Rebuild the gate after a restart."""
        self._do("recover_gate", version, next_group, pending)
        self._notify()

    # -- state -------------------------------------------------------------------------------

    async def stats(self) -> StreamStats:
        """The counters now."""
        return self._ledger.stats()

    async def partitions(self) -> list[PartitionInfo]:
        """Live partitions, oldest first."""
        return self._ledger.info(time.monotonic())

    async def describe(self) -> str:
        """The state in words."""
        return self._ledger.describe(time.monotonic())

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
        if not self._ledger.was_dropped(partition):
            self._holdings.moved(partition, key, refs[0])

    async def lost(self, partition: str, key: str) -> Spans:
        """A stored object is gone; returns the rows that must be put again."""
        if self._ledger.was_dropped(partition):
            return ()
        rows: Spans = self._do("lose", partition, key)
        self._holdings.forget(partition, key)
        self._notify()
        return rows

    def _tables(self) -> list[PartitionTable]:
        return list(self._ledger.partitions.values())

    # -- the ledger --------------------------------------------------------------------------

    def _do(self, operation: str, *args: Any, **options: Any) -> Any:
        """Change the ledger, and record the change."""
        result = getattr(self._ledger, operation)(*args, **options)
        self._record(operation, *args, **options)
        return result

    def _record(self, operation: str, *args: Any, **options: Any) -> None:
        if self._journal is not None:
            self._journal.append(self._ledger, operation, args, options)

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
