"""The real gate, window, stream tables and staleness check, driven by a clock that is only a number.

An engine starts every admitted group at once (`slots` of them, the rest in order) under the newest weights; a trainer
takes sealed partitions in order. Nothing of the parts is replaced: only who calls them, and when.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from relax_engine.rollout.admission import AdmissionGate
from relax_engine.rollout.staleness import StalenessCheck
from relax_engine.rollout.window import PlacementWindow
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.delivery import PutItem, RowGroups, Stored
from relax_engine.stream.ledger import StreamLedger

COLUMNS = ("group_index", "first_version", "last_version")


@dataclass
class Pipeline:
    """One rollout and one trainer; times in seconds of the simulated clock."""

    max_staleness: int
    groups_per_step: int
    generation_time: Callable[[int], float]
    train_time: float
    slots: int = 10**6
    refused: Callable[[int], bool] = lambda group: False
    """Whether a filter refuses the group."""

    lags: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    ends: list[float] = field(default_factory=list)
    """When each step ended."""

    def run(self, steps: int) -> Pipeline:
        """Train `steps` partitions."""
        self.gate = AdmissionGate(max_staleness=self.max_staleness, groups_per_step=self.groups_per_step)
        self.window = PlacementWindow(max_staleness=self.max_staleness, groups_per_step=self.groups_per_step)
        self.ledger = StreamLedger(row_budget=10**6, byte_budget=10**9, gate=self.gate)
        self.rows: dict[str, list[tuple[int, int, int]]] = {}
        self.first_version: dict[int, int] = {}
        self.queue: deque[int] = deque()
        self.running = 0
        self.training = False
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.now = 0.0
        self._admit()
        while len(self.ends) < steps:
            self.now, _, event = heapq.heappop(self.events)
            event()
            stats = self.ledger.stats()
            assert stats.produced == stats.trained + stats.filtered + stats.dropped_stale + stats.in_flight
            assert 0 <= self.gate.occupied <= self.gate.budget
        return self

    @property
    def step_time(self) -> float:
        """Mean time of a step over the second half of the run."""
        half = len(self.ends) // 2
        return (self.ends[-1] - self.ends[half]) / (len(self.ends) - 1 - half)

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), event))

    def _admit(self) -> None:
        while self.gate.free:
            numbers = self.gate.try_admit(1, self.now) or []
            self.window.admit(numbers, self.gate.version)
            self.queue.extend(numbers)
        while self.queue and self.running < self.slots:
            group = self.queue.popleft()
            self.running += 1
            self.first_version[group] = self.gate.version
            self._after(self.generation_time(group), lambda group=group: self._generated(group))

    def _generated(self, group: int) -> None:
        self.running -= 1
        if self.refused(group):
            self.window.discard(group)
            self.ledger.record("filtered", 1, [group])
        else:
            self.window.finish(group)
            while (placement := self.window.place()) is not None:
                name = f"train_{placement.partition}"
                item = PutItem(1, 8, COLUMNS, RowGroups((placement.group,), (1,)), str(placement.group), None, 1.0)
                self.ledger.put(name, Stored(item.token, 0, None).block(0, 1, 8), item, now=self.now)
                version = self.first_version[placement.group]
                self.rows.setdefault(name, []).append((placement.group, version, version))
                if placement.last:
                    self.ledger.open(name, self.now).seal()
        self._admit()
        self._train()

    def _train(self) -> None:
        name = f"train_{self.gate.version}"
        table = self.ledger.find(name)
        if self.training or table is None:
            return
        delivery = table.select("actor_train", 0, COLUMNS, max_rows=None)
        if delivery is None:
            return
        self.training = True
        rows = [self.rows[name][row] for row in delivery.rows]
        batch = ColumnBatch(
            {key: Column.fixed(np.array(values)) for key, values in zip(COLUMNS, zip(*rows, strict=True), strict=True)}
        )
        check = StalenessCheck(self.gate.version, self.max_staleness)
        kept = check.keep(batch)
        lags = Counter((self.gate.version - kept["first_version"].values).tolist())
        self._after(self.train_time, lambda: self._trained(name, lags, check.dropped))

    def _trained(self, name: str, lags: Counter[int], stale: int) -> None:
        self.training = False
        self.lags += lags
        self.dropped += stale
        self.ends.append(self.now)
        self.gate.set_version(self.gate.version + 1)
        self.ledger.drop(name, "trained", dropped_stale=stale)
        self._admit()
        self._train()
