"""The messages between client and controller. They carry references and numbers, never payload.

The small ones are named tuples, which are pickled several times faster than dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from relax_engine.stream.spans import Spans, as_spans, count


class Block(NamedTuple):
    """One batch in the object store: where it is kept and how large it is.

    It is part `part` of the stored object `stored`, which storage unit `unit` pins. `ref` is what
    the object store resolves; only blocks in a delivery carry it.
    """

    key: str
    unit: int
    rows: int
    nbytes: int
    stored: str = ""
    part: int = 0
    ref: Any = None


class Slice(NamedTuple):
    """Rows `[start, stop)` of a block."""

    block: str
    start: int
    stop: int


class Source(NamedTuple):
    """Columns that are read from the same slices, in row order."""

    columns: tuple[str, ...]
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rows of one `take`. `end` means that the partition is sealed and holds no further row for the task."""

    task: str
    partition: str
    seq: int
    spans: Spans = ()
    sources: tuple[Source, ...] = ()
    blocks: dict[str, Block] = field(default_factory=dict)
    end: bool = False
    meta: dict[str, Any] = field(default_factory=dict)
    """What the producer sealed the partition with; empty before."""

    @property
    def num_rows(self) -> int:
        """Rows delivered."""
        return count(self.spans)

    def rows_in(self, stored: str) -> Spans:
        """The delivered rows of which a column lies in the stored object."""
        rows, found = self.rows, np.zeros(self.num_rows, bool)
        for source in self.sources:
            at = 0
            for piece in source.slices:
                size = piece.stop - piece.start
                found[at : at + size] |= self.blocks[piece.block].stored == stored
                at += size
        return as_spans(rows[found])

    @property
    def rows(self) -> np.ndarray:
        """Row numbers, ascending, int64 `[num_rows]`."""
        parts = [np.arange(start, stop) for start, stop in self.spans]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class RowGroups(NamedTuple):
    """Prompt groups of a batch, in row order: `indices[i]` owns the next `sizes[i]` rows."""

    indices: tuple[int, ...]
    sizes: tuple[int, ...]


class PutItem(NamedTuple):
    """What the controller learns about one put; `wait_s` is how long it may wait for room."""

    rows: int
    nbytes: int
    columns: tuple[str, ...]
    groups: RowGroups | None
    token: str
    versions: tuple[int, int] | None
    wait_s: float


class Stored(NamedTuple):
    """An object that a storage unit holds: one or several batches of one partition."""

    key: str
    unit: int
    ref: Any

    def block(self, part: int, rows: int, nbytes: int) -> Block:
        """One of its batches."""
        return Block(f"{self.key}/{part}", self.unit, rows, nbytes, self.key, part)


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far one consumer task has come in one partition (rows; sequence numbers, -1 = none)."""

    delivered: int
    last_seq: int
    committed_seq: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """What the controller knows about a partition. `columns` maps a column to the rows that have it."""

    name: str
    rows: int
    nbytes: int
    sealed: bool
    age_s: float
    columns: dict[str, int]
    tasks: dict[str, TaskProgress]
    versions: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a restarted producer must know: where it was, and what it need not do again.

    Attributes:
        sealed: Name of the newest sealed partition, None for none.
        meta: What that one was sealed with.
        accepted: Groups whose rows are in each unsealed partition, in row order.
        next_group: The first group that was never admitted.
        pending: Earlier groups that were admitted and have neither arrived nor ended; they are admitted again first.
    """

    sealed: str | None
    meta: dict[str, Any]
    accepted: dict[str, list[int]]
    next_group: int
    pending: list[int]


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Counters in samples; `produced == trained + filtered + dropped_stale + in_flight` always."""

    produced: int
    trained: int
    filtered: int
    dropped_stale: int
    in_flight: int
    nbytes: int
    partitions: int
    duplicate_rows: int
    lost_rows: int
    groups_admitted: int
    groups_occupied: int
    group_budget: int
    weight_version: int

    def metrics(self, prefix: str = "stream/") -> dict[str, float]:
        """The counters as metric names and values."""
        return {f"{prefix}{name}": float(getattr(self, name)) for name in self.__slots__}
