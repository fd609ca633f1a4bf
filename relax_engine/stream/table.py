"""One partition's rows, columns and deliveries, as plain synchronous state.

What lives here: the rules of "which rows may this task have now". What does not: waiting, budgets
over several partitions (`ledger.py`), Ray (`controller.py`), payload (`storage.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_engine.stream.delivery import Block, Delivery, RowGroups, Slice, Source, TaskProgress
from relax_engine.stream.errors import StreamError
from relax_engine.stream.spans import Spans, count, describe, intersect, subtract, union


@dataclass(slots=True)
class _Placement:
    """Rows `[start, stop)` of one column lie in `block` from its row `offset` on."""

    start: int
    stop: int
    block: str
    offset: int


@dataclass(slots=True)
class _TaskLog:
    deliveries: list[Spans] = field(default_factory=list)
    delivered: Spans = ()
    committed: int = -1
    last_seen: float = 0.0


class PartitionTable:
    """The state of one partition.

    Life of a row: *put* (its first columns exist) -> *extended* (other roles add columns) ->
    *delivered* to each task once -> gone when the partition is dropped.

    Invariant: for every task the deliveries `0..k` are pairwise disjoint sets of rows, each row
    had all requested columns when it was selected, and no delivery ever changes. Hence any rank
    and any retry that asks for the same sequence number gets the same rows, and a row is in at
    most one delivery of a task. When the partition is sealed and the task has taken to the end,
    the union of its deliveries is all rows.

    Trace, groups of 2 rows, task `t` wants columns `a, b` two rows at a time::

        add_rows(4 rows, a)              rows 0-3 have a
        select(t, seq=0)                 -> None   (no row has b)
        add_columns(rows 2-3, b)         rows 2-3 have a, b
        select(t, seq=0)                 -> 2-3    (logged as t/0)
        select(t, seq=0)                 -> 2-3    (same rows: another rank, or a retry)
        select(t, seq=2)                 -> None   (t/1 was never taken)
        add_columns(rows 0-1, b); seal()
        select(t, seq=1)                 -> 0-1
        select(t, seq=2)                 -> end
        lose(block of b at 0-1)          rows 0-1 lack b; t/1 is unreadable until b is put again
    """

    def __init__(self, name: str, *, created: float = 0.0) -> None:
        self.name = name
        self.created = created
        self.rows = 0
        self.sealed = False
        self.meta: dict[str, Any] = {}
        self.blocks: dict[str, Block] = {}
        self.versions: tuple[int, int] | None = None
        self._starts: list[int] = []  # first row of each group
        self._groups: list[int] = []  # its group_index
        self._coverage: dict[str, Spans] = {}
        self._placements: dict[str, list[_Placement]] = {}
        self._tasks: dict[str, _TaskLog] = {}
        self._tokens: dict[str, range] = {}

    # -- writing -----------------------------------------------------------------------------

    def add_rows(
        self,
        block: Block,
        columns: Sequence[str],
        groups: RowGroups | None = None,
        *,
        token: str | None = None,
        versions: tuple[int, int] | None = None,
    ) -> range:
        """Append the block's rows and return their numbers; a repeated `token` returns the first answer.

        Without `groups` each row is a group of its own.

        Raises:
            StreamError: the partition is sealed.
            ValueError: the group sizes do not add up to the block's rows.
        """
        if token is not None and token in self._tokens:
            return self._tokens[token]
        if self.sealed:
            raise StreamError(f"partition {self.name!r} is sealed; a put of {block.rows} rows came too late")
        rows = range(self.rows, self.rows + block.rows)
        if groups is None:
            self._starts.extend(rows)
            self._groups.extend([-1] * len(rows))
        else:
            if sum(groups.sizes) != block.rows:
                raise ValueError(f"group sizes {groups.sizes} do not add up to the {block.rows} rows of the batch")
            start = self.rows
            for index, size in zip(groups.indices, groups.sizes, strict=True):
                self._starts.append(start)
                self._groups.append(index)
                start += size
        self.rows = rows.stop
        self._place(block, columns, ((rows.start, rows.stop),))
        if versions is not None:
            low, high = self.versions or versions
            self.versions = (min(low, versions[0]), max(high, versions[1]))
        if token is not None:
            self._tokens[token] = rows
        return rows

    def knows(self, token: str) -> bool:
        """Whether `add_rows` accepted this token."""
        return token in self._tokens

    def add_columns(self, rows: Spans, block: Block, columns: Sequence[str]) -> int:
        """Give existing rows further columns; returns how many rows had them all already.

        The first write of a (row, column) wins, so a restarted role may put its result again.

        Raises:
            ValueError: unknown rows, or a number of rows other than the block's.
        """
        if count(rows) != block.rows:
            raise ValueError(f"{count(rows)} row numbers for a batch of {block.rows} rows")
        if rows and rows[-1][1] > self.rows:
            raise ValueError(f"rows {describe(rows)} are not in partition {self.name!r}, which has {self.rows} rows")
        fresh = self._place(block, columns, rows)
        return block.rows - count(fresh)

    def seal(self, meta: dict[str, Any] | None = None) -> None:
        """No further row will come; `meta` is kept for the partition's readers."""
        self.sealed = True
        self.meta = meta or {}

    def lose(self, key: str) -> Spans:
        """Forget the blocks of a stored object that is gone; returns the rows that lost columns with them."""
        keys = {block.key for block in self.blocks.values() if block.stored == key}
        lost: Spans = ()
        for column, placements in self._placements.items():
            gone = tuple((p.start, p.stop) for p in placements if p.block in keys)
            if gone:
                self._placements[column] = [p for p in placements if p.block not in keys]
                self._coverage[column] = subtract(self._coverage[column], gone)
                lost = union(lost, gone)
        for block in keys:
            del self.blocks[block]
        return lost

    def _place(self, block: Block, columns: Sequence[str], rows: Spans) -> Spans:
        """Record where the columns lie; returns the rows for which any column was new."""
        fresh_rows: Spans = ()
        for column in columns:
            covered = self._coverage.get(column, ())
            fresh = subtract(rows, covered)
            if not fresh:
                continue
            placements = self._placements.setdefault(column, [])
            new, offset = [], 0
            for start, stop in rows:
                new += [_Placement(a, b, block.key, offset + a - start) for a, b in intersect(((start, stop),), fresh)]
                offset += stop - start
            in_order = not placements or placements[-1].stop <= new[0].start
            placements.extend(new)
            if not in_order:
                placements.sort(key=lambda placement: placement.start)
            self._coverage[column] = union(covered, fresh)
            fresh_rows = union(fresh_rows, fresh)
        if fresh_rows:
            self.blocks[block.key] = block
        return fresh_rows

    # -- reading -----------------------------------------------------------------------------

    def select(
        self,
        task: str,
        seq: int,
        columns: Sequence[str],
        *,
        max_rows: int | None,
        min_rows: int | None = None,
        whole_groups: bool = True,
        now: float = 0.0,
    ) -> Delivery | None:
        """The delivery `(task, seq)`, chosen now if it is the next one; None while it cannot be answered.

        A new delivery is made when `min_rows` rows are ready (default: `max_rows`, that is, full
        batches), when the next group no longer fits, or when it holds everything that is left of a
        sealed partition. `max_rows=None` waits for the seal and takes all.

        Raises:
            ValueError: bad arguments, or a group larger than `max_rows`.
        """
        if seq < 0 or (max_rows is not None and max_rows < 1) or not columns:
            raise ValueError(f"take needs seq >= 0, max_rows >= 1 and columns; got {seq}, {max_rows}, {tuple(columns)}")
        log = self._tasks.setdefault(task, _TaskLog())
        log.last_seen = now
        ready = self._ready(columns)
        if seq < len(log.deliveries):
            spans = log.deliveries[seq]
            return None if subtract(spans, ready) else self._deliver(task, seq, spans, columns)
        if seq > len(log.deliveries):
            return None
        left = self.rows - count(log.delivered)
        if self.sealed and left == 0:
            return Delivery(task, self.name, seq, end=True, meta=self.meta)
        spans, full = self._pick(subtract(ready, log.delivered), max_rows, whole_groups)
        picked = count(spans)
        wanted = max_rows if min_rows is None else min_rows
        enough = wanted is not None and picked >= wanted
        if not picked or not (enough or full or (self.sealed and picked == left)):
            return None
        log.deliveries.append(spans)
        log.delivered = union(log.delivered, spans)
        return self._deliver(task, seq, spans, columns)

    def commit(self, task: str, seq: int) -> None:
        """The task is done with deliveries up to `seq`; a restart continues behind it.

        Raises:
            ValueError: `seq` was never delivered to the task.
        """
        log = self._tasks.get(task)
        if log is None or seq >= len(log.deliveries):
            raise ValueError(f"task {task!r} cannot commit seq {seq} of {self.name!r}: it was not delivered")
        log.committed = max(log.committed, seq)

    def deliveries(self, task: str) -> int:
        """How many deliveries the task was given."""
        return len(self._tasks[task].deliveries) if task in self._tasks else 0

    def reset(self, task: str) -> None:
        """Forget what the task was given, so that it reads the partition from the start."""
        self._tasks.pop(task, None)

    def _ready(self, columns: Sequence[str]) -> Spans:
        ready: Spans = ((0, self.rows),) if self.rows else ()
        for column in columns:
            ready = intersect(ready, self._coverage.get(column, ()))
        return ready

    def _pick(self, free: Spans, max_rows: int | None, whole_groups: bool) -> tuple[Spans, bool]:
        """Rows from the front of `free`, and whether more were ready than fit."""
        room = self.rows if max_rows is None else max_rows
        picked: list[tuple[int, int]] = []
        for start, stop in free:
            if whole_groups:
                start, stop = self._inside(start, stop)
            if start >= stop:
                continue
            end = min(stop, start + room)
            if whole_groups and end < stop:
                _, end = self._inside(start, end)
                if end <= start and not picked:
                    group = self._groups[bisect_left(self._starts, start)]
                    raise ValueError(
                        f"group {group} of partition {self.name!r} has more rows than max_rows={max_rows}; "
                        "raise max_rows or pass whole_groups=False"
                    )
            if end > start:
                picked.append((start, end))
                room -= end - start
            if end < stop:
                return tuple(picked), True
        return tuple(picked), False

    def _inside(self, start: int, stop: int) -> tuple[int, int]:
        """The groups that lie wholly in `[start, stop)`, as a row range (empty if none)."""
        first = bisect_left(self._starts, start)
        if first == len(self._starts):
            return stop, stop
        if stop < self.rows:
            stop = self._starts[bisect_right(self._starts, stop) - 1]
        return self._starts[first], stop

    def _deliver(self, task: str, seq: int, spans: Spans, columns: Sequence[str]) -> Delivery:
        by_slices: dict[tuple[Slice, ...], list[str]] = {}
        for column in columns:
            by_slices.setdefault(self._slices(column, spans), []).append(column)
        sources = tuple(Source(tuple(names), slices) for slices, names in by_slices.items())
        blocks = {piece.block: self.blocks[piece.block] for slices in by_slices for piece in slices}
        return Delivery(task, self.name, seq, spans, sources, blocks, meta=self.meta)

    def _slices(self, column: str, spans: Spans) -> tuple[Slice, ...]:
        placements = self._placements[column]
        slices = []
        for start, stop in spans:
            at = bisect_right(placements, start, key=lambda placement: placement.start) - 1
            while start < stop:
                place = placements[at]
                end = min(stop, place.stop)
                slices.append(Slice(place.block, place.offset + start - place.start, place.offset + end - place.start))
                start, at = end, at + 1
        return tuple(slices)

    # -- reporting ---------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Payload bytes of the partition's blocks."""
        return sum(block.nbytes for block in self.blocks.values())

    @property
    def groups(self) -> list[int]:
        """Group indices of the rows put so far, in order; rows without a group are left out."""
        return [group for group in self._groups if group >= 0]

    def columns(self) -> dict[str, int]:
        """How many rows have each column."""
        return {name: count(spans) for name, spans in sorted(self._coverage.items())}

    def progress(self, now: float) -> dict[str, TaskProgress]:
        """How far each task has come."""
        return {
            task: TaskProgress(count(log.delivered), len(log.deliveries) - 1, log.committed, now - log.last_seen)
            for task, log in self._tasks.items()
        }

    def explain(self, task: str, seq: int, columns: Sequence[str]) -> str:
        """Why `select` answers None: which rows lack which columns, and what the task has had."""
        log = self._tasks.get(task, _TaskLog())
        if seq > len(log.deliveries):
            return f"seq {seq} waits for seq {len(log.deliveries)}, which nobody has taken"
        everything: Spans = ((0, self.rows),) if self.rows else ()
        wanted = log.deliveries[seq] if seq < len(log.deliveries) else subtract(everything, log.delivered)
        lacking = {column: subtract(wanted, self._coverage.get(column, ())) for column in columns}
        parts = [
            f"column {column!r} is missing on rows {describe(spans)}" for column, spans in lacking.items() if spans
        ]
        state = "sealed" if self.sealed else "not sealed"
        ready = count(intersect(wanted, self._ready(columns)))
        head = f"{self.rows} rows, {state}; {count(log.delivered)} delivered to the task, {ready} of the rest ready"
        return "; ".join([head, *parts])
