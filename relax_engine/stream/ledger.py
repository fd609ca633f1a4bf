"""All partitions of a stream: accounting in samples, budgets, and the text of deadline errors.

Plain synchronous state, a function of the operations on it; `controller.py` adds waiting and Ray,
`journal.py` keeps it on disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

from relax_engine.rollout.admission import AdmissionGate
from relax_engine.stream.delivery import Block, Delivery, PartitionInfo, ProducerState, PutItem, StreamStats
from relax_engine.stream.errors import BudgetError, PartitionDroppedError, StreamError
from relax_engine.stream.spans import Spans, count
from relax_engine.stream.table import PartitionTable

Outcome = Literal["trained", "filtered", "dropped_stale"]

_TOMBSTONES = 4096
_TOKENS = 1024


class StreamLedger:
    """Where every sample is.

    Invariant: `produced == trained + filtered + dropped_stale + in_flight`, where `in_flight` is
    the number of rows in live partitions. A sample is counted as produced when its row is put, or
    when its producer reports that it was filtered or dropped before that.

    Trace::

        put 8 rows                                    produced 8                      in_flight 8
        record("filtered", 4)                         produced 12   filtered 4        in_flight 8
        drop(trained, dropped_stale=2)                produced 12   filtered 4  trained 6  dropped_stale 2

    A partition that was trained may be *retained*: its rows have left the accounting and the
    budget, but can be taken again, by the same deliveries, until a checkpoint covers them.
    """

    def __init__(self, *, row_budget: int, byte_budget: int, gate: AdmissionGate | None = None) -> None:
        if row_budget < 1 or byte_budget < 1:
            raise ValueError(f"budgets must be positive, got {row_budget} rows and {byte_budget} bytes")
        self.row_budget = row_budget
        self.byte_budget = byte_budget
        self.gate = gate
        self.partitions: dict[str, PartitionTable] = {}
        self.retained: dict[str, PartitionTable] = {}
        self.counts: dict[Outcome, int] = {"trained": 0, "filtered": 0, "dropped_stale": 0}
        self.produced = 0
        self.rows = 0
        self.nbytes = 0
        self.duplicate_rows = 0
        self.lost_rows = 0
        self._dropped: OrderedDict[str, Outcome] = OrderedDict()
        self._answers: OrderedDict[str, list[int]] = OrderedDict()
        self._sealed: str | None = None
        self._sealed_meta: dict[str, Any] = {}
        self._version = 0

    # -- partitions --------------------------------------------------------------------------

    def live(self, partition: str) -> PartitionTable:
        """The partition's table.

        Raises:
            PartitionDroppedError: it was dropped.
            StreamError: nobody has put anything into it yet.
        """
        table = self.find(partition)
        if table is None:
            raise StreamError(f"no partition {partition!r}; the stream has {sorted(self.partitions) or 'none'}")
        return table

    def find(self, partition: str) -> PartitionTable | None:
        """The partition's table, None before its first put.

        Raises:
            PartitionDroppedError: it was dropped.
        """
        if partition in self._dropped:
            raise PartitionDroppedError(
                f"partition {partition!r} was dropped ({self._dropped[partition]}); partition names are used once"
            )
        return self.partitions.get(partition) or self.retained.get(partition)

    def was_dropped(self, partition: str) -> bool:
        """Whether the partition lived and was trained or dropped."""
        return partition in self._dropped or partition in self.retained

    def open(self, partition: str, now: float) -> PartitionTable:
        """The partition's table, created on first use."""
        table = self.find(partition)
        if table is None:
            table = self.partitions[partition] = PartitionTable(partition, created=now)
        return table

    # -- writing -----------------------------------------------------------------------------

    def fits(self, block: Block) -> bool:
        """Whether the block's rows may enter now.

        Raises:
            BudgetError: they never will, because the batch is larger than the whole budget.
        """
        if block.rows > self.row_budget or block.nbytes > self.byte_budget:
            raise BudgetError(
                f"a batch of {block.rows} rows and {block.nbytes} bytes exceeds the stream's budget of "
                f"{self.row_budget} rows and {self.byte_budget} bytes; put smaller batches or raise the budget"
            )
        return self.rows + block.rows <= self.row_budget and self.nbytes + block.nbytes <= self.byte_budget

    def knows(self, partition: str, token: str) -> bool:
        """Whether a put with this token was accepted before."""
        table = self.find(partition)
        return table is not None and table.knows(token)

    def put(self, partition: str, block: Block, item: PutItem, *, now: float) -> range:
        """Make the block's rows visible; all of them or none."""
        table = self.open(partition, now)
        before = table.rows
        rows = table.add_rows(block, item.columns, item.groups, token=item.token, versions=item.versions)
        if table.rows == before:
            self.duplicate_rows += block.rows
            return rows
        self.produced += block.rows
        self.rows += block.rows
        self.nbytes += block.nbytes
        if self.gate is not None and item.groups is not None:
            self.gate.arrived(item.groups.indices)
        return rows

    def put_columns(self, partition: str, rows: Spans, block: Block, columns: Sequence[str]) -> bool:
        """Add columns to rows; False when the rows had them all already and the block is not needed."""
        table = self.live(partition)
        before = table.nbytes
        duplicates = table.add_columns(rows, block, columns)
        self.duplicate_rows += duplicates
        if partition in self.partitions:
            self.nbytes += table.nbytes - before  # nothing for a block that a repeated call brings again
        return block.key in table.blocks

    def lose(self, partition: str, key: str) -> Spans:
        """Forget a lost object; returns the rows that must be put again."""
        table = self.live(partition)
        before = table.nbytes
        rows = table.lose(key)
        if partition in self.partitions:
            self.nbytes -= before - table.nbytes
        self.lost_rows += count(rows)
        return rows

    def seal(self, partition: str, meta: dict[str, Any], now: float) -> int:
        """Close a partition and keep `meta` for its readers; returns its number of rows."""
        table = self.open(partition, now)
        if not table.sealed:
            table.seal(meta)
            self._sealed, self._sealed_meta = partition, meta
        return table.rows

    def record(self, outcome: Outcome, samples: int, groups: Sequence[int] = (), token: str | None = None) -> None:
        """Samples that were produced and ended before they were put, and the admission slots they free.

        A repeated `token` records nothing.
        """
        if outcome == "trained" or samples < 0:
            raise ValueError(f"cannot record {samples} samples as {outcome!r} without a partition")
        if token is not None:
            if token in self._answers:
                return
            self._remember(token, [])
        self.produced += samples
        self.counts[outcome] += samples
        if self.gate is not None:
            self.gate.release(groups, outcome)

    def drop(
        self, partition: str, outcome: Outcome, *, filtered: int = 0, dropped_stale: int = 0
    ) -> PartitionTable | None:
        """End a partition: its rows leave with `outcome`, except the counts given; None if it was dropped before.

        Raises:
            ValueError: the exceptions are more than the partition's rows.
        """
        if self.was_dropped(partition):
            return None
        table = self.live(partition)
        rest = table.rows - filtered - dropped_stale
        if rest < 0 or filtered < 0 or dropped_stale < 0:
            raise ValueError(
                f"partition {partition!r} has {table.rows} rows; cannot end {filtered} as filtered and "
                f"{dropped_stale} as dropped_stale"
            )
        del self.partitions[partition]
        self._bury(partition, outcome)
        self.counts[outcome] += rest
        self.counts["filtered"] += filtered
        self.counts["dropped_stale"] += dropped_stale
        self.rows -= table.rows
        self.nbytes -= table.nbytes
        if self.gate is not None:
            self.gate.release(table.groups, outcome)
        return table

    def finish(self, partition: str, version: int | None, dropped_stale: int, *, retain: bool) -> list[str]:
        """The partition was trained, which made weights `version`; returns the partitions that are gone for good.

        With `retain` it can still be taken; without it, it goes, and all retained ones go with it.
        Repeating the call changes nothing.
        """
        gone = []
        table = self.drop(partition, "trained", dropped_stale=dropped_stale)
        if table is not None:
            if version is not None:
                self._version = version
                if self.gate is not None:
                    self.gate.set_version(version)
            if retain:
                del self._dropped[partition]
                self.retained[partition] = table
            else:
                gone.append(partition)
        if not retain:
            for name in self.retained:
                self._bury(name, "trained")
                gone.append(name)
            self.retained = {}
        return gone

    def _bury(self, partition: str, outcome: Outcome) -> None:
        self._dropped[partition] = outcome
        while len(self._dropped) > _TOMBSTONES:
            self._dropped.popitem(last=False)

    # -- reading -----------------------------------------------------------------------------

    def select(
        self,
        partition: str,
        task: str,
        seq: int,
        columns: Sequence[str],
        max_rows: int | None,
        min_rows: int | None,
        whole_groups: bool,
        now: float,
    ) -> tuple[Delivery | None, bool]:
        """See `PartitionTable.select`; and whether it made a new delivery."""
        table = self.find(partition)
        if table is None:
            return None, False
        before = table.deliveries(task)
        delivery = table.select(
            task, seq, columns, max_rows=max_rows, min_rows=min_rows, whole_groups=whole_groups, now=now
        )
        return delivery, table.deliveries(task) > before

    def commit(self, partition: str, task: str, seq: int) -> None:
        """See `PartitionTable.commit`."""
        self.live(partition).commit(task, seq)

    def reset(self, partition: str, task: str) -> None:
        """See `PartitionTable.reset`; a partition that nobody has put into is fine."""
        table = self.find(partition)
        if table is not None:
            table.reset(task)

    # -- admission ---------------------------------------------------------------------------

    def admit(self, groups: int, token: str, now: float) -> list[int] | None:
        """See `AdmissionGate.try_admit`; a repeated `token` gets the first answer."""
        if token in self._answers:
            return self._answers[token]
        numbers = self.admission.try_admit(groups, now)
        if numbers is not None:
            self._remember(token, numbers)
        return numbers

    def withdraw(self) -> ProducerState:
        """A new producer takes over: slots of groups that have not arrived are free again, under their old numbers."""
        next_group, pending = (0, []) if self.gate is None else self.gate.withdraw()
        return ProducerState(
            self._sealed,
            self._sealed_meta,
            {name: table.groups for name, table in self.partitions.items() if not table.sealed},
            next_group,
            pending,
        )

    def recover_gate(self, version: int, next_group: int | None, pending: Sequence[int]) -> None:
        """See `AdmissionGate.recover`."""
        self.admission.recover(version, next_group=next_group, pending=pending)

    @property
    def admission(self) -> AdmissionGate:
        """The gate.

        Raises:
            ValueError: the stream has none.
        """
        if self.gate is None:
            raise ValueError("this stream has no admission gate; start it with max_staleness and groups_per_step")
        return self.gate

    def _remember(self, token: str, answer: list[int]) -> None:
        self._answers[token] = answer
        while len(self._answers) > _TOKENS:
            self._answers.popitem(last=False)

    # -- reporting ---------------------------------------------------------------------------

    def stats(self) -> StreamStats:
        """The counters now."""
        gate = self.gate
        return StreamStats(
            produced=self.produced,
            trained=self.counts["trained"],
            filtered=self.counts["filtered"],
            dropped_stale=self.counts["dropped_stale"],
            in_flight=self.rows,
            nbytes=self.nbytes,
            partitions=len(self.partitions),
            duplicate_rows=self.duplicate_rows,
            lost_rows=self.lost_rows,
            groups_admitted=0 if gate is None else gate.admitted,
            groups_occupied=0 if gate is None else gate.occupied,
            group_budget=0 if gate is None else gate.budget,
            weight_version=self._version if gate is None else gate.version,
        )

    def info(self, now: float) -> list[PartitionInfo]:
        """Every live partition, oldest first."""
        return [
            PartitionInfo(
                table.name,
                table.rows,
                table.nbytes,
                table.sealed,
                now - table.created,
                table.columns(),
                table.progress(now),
                table.versions,
            )
            for table in self.partitions.values()
        ]

    def describe(self, now: float) -> str:
        """Every live partition, who has taken how much of it, and which groups are missing."""
        lines = []
        for table in self.partitions.values():
            tasks = [
                f"{task} took {state.delivered} rows, last asked {state.idle_s:.1f} s ago"
                for task, state in table.progress(now).items()
            ]
            lines.append(
                f"partition {table.name!r}: {table.rows} rows, {'sealed' if table.sealed else 'open'}, "
                f"{now - table.created:.1f} s old, columns {table.columns()}; {'; '.join(tasks) or 'nobody has asked'}"
            )
        if self.gate is not None:
            lines.append(self.gate.explain(now))
        return "\n".join(lines) or "no live partition"

    def explain_take(self, task: str, partition: str, seq: int, columns: Sequence[str], now: float) -> str:
        """What a take that met its deadline was waiting for."""
        table = self.partitions.get(partition)
        parts = ["nobody has put into it" if table is None else table.explain(task, seq, columns)]
        if self.gate is not None and (table is None or not table.sealed):
            parts.append(self.gate.explain(now))
        return "; ".join(parts)

    def explain_put(self, block: Block, now: float) -> str:
        """What holds a producer back: the budget, and the consumer of the oldest partition."""
        head = (
            f"{block.rows} rows ({block.nbytes} bytes) wait for room: {self.rows} of {self.row_budget} rows and "
            f"{self.nbytes} of {self.byte_budget} bytes are taken"
        )
        if not self.partitions:
            return head
        oldest = next(iter(self.partitions.values()))
        tasks = [
            f"task {task!r} has {state.delivered} of {oldest.rows} rows, committed seq {state.committed_seq}, "
            f"last asked {state.idle_s:.1f} s ago"
            for task, state in oldest.progress(now).items()
        ]
        return (
            f"{head}; the oldest partition {oldest.name!r} ({oldest.rows} rows, {oldest.nbytes} bytes, "
            f"{now - oldest.created:.1f} s old) has not been dropped: {'; '.join(tasks) or 'no task has asked for it'}"
        )
