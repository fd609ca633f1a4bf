"""The stream as its users see it: producers, consumers and roles that add columns.

A client is a handle: it may be passed to any Ray task or actor. Every call has a deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from relax_engine.stream.blocks import BlockStore, unit_failure
from relax_engine.stream.calls import CALL_S, WAIT_S, StreamCalls
from relax_engine.stream.columns import ColumnBatch
from relax_engine.stream.delivery import (
    Delivery,
    PutItem,
    RowGroups,
    Stored,
)
from relax_engine.stream.errors import StreamRestartingError, StreamUnavailableError
from relax_engine.stream.ledger import Outcome
from relax_engine.stream.outbox import Outbox, PendingPut
from relax_engine.stream.payload import assemble, row_groups, version_range
from relax_engine.stream.rpc import RETRY_S, server_wait, settle
from relax_engine.stream.spans import Spans, as_spans


class StreamClient(StreamCalls):
    """Access to one stream; `start_stream` and `connect_stream` make clients."""

    def __init__(self, controller: ray.actor.ActorHandle, units: Sequence[ray.actor.ActorHandle]) -> None:
        super().__init__(controller, units)
        self._blocks = BlockStore(controller, units)
        self._outbox = Outbox(self._send)
        self._name = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamClient, (self._controller, self._units)

    # -- producers ---------------------------------------------------------------------------

    def put(
        self,
        partition: str,
        batch: ColumnBatch,
        *,
        groups: RowGroups | None = None,
        token: str | None = None,
        deadline_s: float = WAIT_S,
    ) -> range:
        """Append rows to a partition and return their numbers, in order of put.

        All rows become visible at once, or none. Groups are runs of equal `group_index`
        (or `groups`). While the stream is over its row or byte budget the call waits. A repeated
        `token` stores nothing and returns the first answer: use one per logical batch when a
        restarted producer may repeat itself.

        Raises:
            StreamTimeoutError: no room until the deadline; names the consumer that holds it back.
            BudgetError: the batch alone exceeds the budget.
            PartitionDroppedError: the partition is gone.
        """
        return self.put_nowait(partition, batch, groups=groups, token=token, deadline_s=deadline_s).rows()

    def put_nowait(
        self,
        partition: str,
        batch: ColumnBatch,
        *,
        groups: RowGroups | None = None,
        token: str | None = None,
        deadline_s: float = WAIT_S,
    ) -> PendingPut:
        """Start a put; its rows are promised only when `rows()` of the result has returned.

        Until then the batch's arrays must not change. Puts of one client become visible in the order
        of the calls. Those that come while an earlier one is being stored travel together (`outbox.py`).
        """
        if batch.num_rows == 0:
            raise ValueError(f"put into {partition!r}: the batch has no rows")
        item = PutItem(
            batch.num_rows,
            batch.nbytes,
            tuple(batch),
            row_groups(batch) if groups is None else groups,
            token or f"{self._name}-{next(self._numbers)}",
            version_range(batch),
            server_wait(deadline_s),
        )
        return self._outbox.submit(PendingPut(partition, batch, item, time.monotonic() + deadline_s))

    async def aput(
        self,
        partition: str,
        batch: ColumnBatch,
        *,
        groups: RowGroups | None = None,
        token: str | None = None,
        deadline_s: float = WAIT_S,
    ) -> range:
        """`put` for asyncio callers; concurrent puts share their messages."""
        start = asyncio.to_thread(self.put_nowait, partition, batch, groups=groups, token=token, deadline_s=deadline_s)
        return await (await start).arows()

    def _send(self, puts: Sequence[PendingPut]) -> list[range | Exception]:
        """Store puts of one partition together.

        A storage unit that dies meanwhile is replaced by the next one; the tokens keep the
        repetition from storing rows twice.
        """
        partition = puts[0].partition
        items = [put.item._replace(wait_s=server_wait(put.left)) for put in puts]
        return self._store(
            partition,
            [put.batch for put in puts if put.batch is not None],
            lambda held, stored: self._controller.put.remote(held, partition, stored, items),
            max(put.end for put in puts),
        )

    def _store(
        self,
        partition: str,
        batches: Sequence[ColumnBatch],
        announce: Callable[[ray.ObjectRef, Stored], ray.ObjectRef],
        end: float,
    ) -> Any:
        """Write batches, have them held and announced; again with the next unit, or the restarted controller."""
        stored, held = self._blocks.write(partition, batches)
        while True:
            answer = announce(held, stored)
            try:
                return settle(answer, max(0.0, end - time.monotonic()), f"put into {partition!r}")
            except (StreamUnavailableError, RayActorError, RayTaskError) as error:
                unit_died = unit_failure(held) is not None
                if end - time.monotonic() < RETRY_S or not (unit_died or isinstance(error, StreamRestartingError)):
                    raise
            time.sleep(RETRY_S)
            if unit_died:
                stored, held = self._blocks.write(partition, batches)

    def seal(self, partition: str, *, meta: Mapping[str, Any] | None = None, deadline_s: float = CALL_S) -> int:
        """Close a partition (`is_last`); returns its number of rows. `meta` is for its readers: small, plain data."""
        return self._ask("seal", partition, dict(meta or {}), deadline_s=deadline_s)

    def record_filtered(self, samples: int, groups: Sequence[int] = (), *, deadline_s: float = CALL_S) -> None:
        """Samples that a filter removed before they were put; `groups` frees their admission slots."""
        self._ask("record", "filtered", samples, list(groups), uuid.uuid4().hex, deadline_s=deadline_s)

    # -- consumers ---------------------------------------------------------------------------

    def take(
        self,
        task: str,
        partition: str,
        seq: int,
        columns: Sequence[str],
        max_rows: int | None,
        *,
        min_rows: int | None = None,
        whole_groups: bool = True,
        commit: int | None = None,
        deadline_s: float = WAIT_S,
    ) -> Delivery:
        """The `seq`-th delivery of the partition to the task, the same for every caller and every retry.

        Waits until `min_rows` rows with all `columns` are there (default `max_rows`), or fewer if
        nothing more can come. `max_rows=None` waits for the seal and takes all. `commit` first
        commits an earlier delivery. Read the rows with `fetch`.

        Raises:
            StreamTimeoutError: names task, partition, rows that lack columns, missing groups and
                their engines.
        """
        args = (task, partition, seq, tuple(columns), max_rows, min_rows, whole_groups, commit)
        return self._wait("take", *args, 1, deadline_s=deadline_s)[0]

    def fetch(
        self, delivery: Delivery, columns: Sequence[str] | None = None, *, deadline_s: float = WAIT_S
    ) -> ColumnBatch:
        """The delivery's rows. Arrays are read-only; they are views of shared memory where a column is one block.

        Raises:
            BlockLostError: names the rows to put again.
        """
        if delivery.end:
            raise ValueError(
                f"seq {delivery.seq} of {delivery.task!r} in {delivery.partition!r} is the end, without rows"
            )
        return assemble(delivery, self._blocks.read(delivery, deadline_s), columns)

    def deliveries(
        self,
        task: str,
        partition: str,
        columns: Sequence[str],
        max_rows: int | None,
        *,
        min_rows: int | None = None,
        whole_groups: bool = True,
        ahead: int = 1,
        deadline_s: float = WAIT_S,
    ) -> Iterator[tuple[Delivery, ColumnBatch]]:
        """All deliveries behind the task's last commit, each committed once the caller has asked for the next.

        One request brings up to `ahead` deliveries if they are ready, and commits those before it;
        a restart repeats what was not committed, so `ahead` is the most that may be repeated.
        """
        seq = self.committed(task, partition) + 1
        while True:
            args = (task, partition, seq, tuple(columns), max_rows, min_rows, whole_groups, seq - 1 if seq else None)
            found = self._wait("take", *args, ahead, deadline_s=deadline_s)
            for delivery in found:
                if delivery.end:
                    if delivery.seq > seq:
                        self.commit(task, partition, delivery.seq - 1)
                    return
                yield delivery, self.fetch(delivery, deadline_s=deadline_s)
            seq += len(found)

    def commit(self, task: str, partition: str, seq: int, *, deadline_s: float = CALL_S) -> None:
        """The task is done with its deliveries up to `seq`; after a restart it continues behind them."""
        self._ask("commit", task, partition, seq, deadline_s=deadline_s)

    def committed(self, task: str, partition: str, *, deadline_s: float = CALL_S) -> int:
        """The last committed sequence number, -1 for none."""
        return self._ask("committed", task, partition, deadline_s=deadline_s)

    def reset_consumption(self, partition: str, task: str, *, deadline_s: float = CALL_S) -> None:
        """Give the task all rows of the partition again, from seq 0."""
        self._ask("reset_consumption", partition, task, deadline_s=deadline_s)

    # -- roles that add columns --------------------------------------------------------------

    def put_columns(
        self,
        partition: str,
        rows: Delivery | range | Spans | Sequence[int] | np.ndarray,
        batch: ColumnBatch,
        *,
        task: str | None = None,
        seq: int = -1,
        deadline_s: float = WAIT_S,
    ) -> None:
        """Add columns to existing rows (ascending, in the batch's order), in one step for all of them.

        The first value of a (row, column) stays, so a restarted role may repeat itself. With
        `task`, its delivery `seq` is committed in the same step. Never waits for the budget: the
        rows are already counted, and waiting here could stop the consumer that frees it.
        """
        spans = rows.spans if isinstance(rows, Delivery) else as_spans(rows)
        item = PutItem(batch.num_rows, batch.nbytes, tuple(batch), None, "", None, 0.0)
        self._store(
            partition,
            [batch],
            lambda held, stored: self._controller.put_columns.remote(held, partition, spans, stored, item, task, seq),
            time.monotonic() + deadline_s,
        )

    # -- ends --------------------------------------------------------------------------------

    def drop(
        self,
        partition: str,
        outcome: Outcome = "trained",
        *,
        filtered: int = 0,
        dropped_stale: int = 0,
        deadline_s: float = CALL_S,
    ) -> bool:
        """End a partition: free its blocks and admission slots; False if it was dropped before.

        Its rows count as `outcome`, except `filtered` and `dropped_stale` of them.
        """
        self._blocks.forget()
        return self._ask("drop", partition, outcome, filtered, dropped_stale, deadline_s=deadline_s)
