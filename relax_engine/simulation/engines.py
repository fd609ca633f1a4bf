"""The rollout of fully-async and hybrid mode: admission, generation, rewards, and places in partitions."""

from __future__ import annotations

import math
from collections import Counter, deque

from relax_engine.rollout.window import PlacementWindow
from relax_engine.simulation.clock import Clock, Process, Signal
from relax_engine.simulation.observations import Observations
from relax_engine.simulation.plan import Plan
from relax_engine.simulation.timing import Draws


class Engines:
    """Keeps `(max_staleness + 1) * rollout_batch_size` groups under way and writes finished ones to partitions.

    The order is the engine's own `PlacementWindow`. Weight syncs pause generation; requests go on afterwards.
    """

    def __init__(self, plan: Plan, clock: Clock, seen: Observations, draws: Draws) -> None:
        self.plan, self.clock, self.seen, self.draws = plan, clock, seen, draws
        self.version = 0
        self.first_version: dict[int, int] = {}
        self.contents: dict[int, list[int]] = {}
        """Groups of each partition so far."""
        self.handed_on: Counter[int] = Counter()
        """How many of them other roles may have: whole parts."""
        self.changed = Signal()
        self.window = PlacementWindow(
            max_staleness=math.ceil(plan.max_staleness), groups_per_step=plan.rollout_batch_size
        )
        self._free = round((plan.max_staleness + 1) * plan.rollout_batch_size)
        self._next = 0
        self._queue: deque[range] = deque()
        self._running = 0
        self._since = 0.0
        self._paused_at: float | None = None
        self._paused = 0.0
        self._resumed = Signal()

    def admit(self, released: int = 0) -> None:
        """Start what fits; `released` slots are free again."""
        self._free += released
        while self._free >= self.plan.request_groups:
            groups = range(self._next, self._next + self.plan.request_groups)
            self._next, self._free = groups.stop, self._free - len(groups)
            self.window.admit(groups, self.version)
            self._queue.append(groups)
        limit = self.plan.slots or math.inf
        while self._queue and self._running < limit:
            self._count(+1)
            self.clock.start(self._request(self._queue.popleft()))

    def pause(self) -> None:
        """Hold all requests."""
        self._count(0)
        self._paused_at = self.clock.now

    def resume(self, version: int) -> None:
        """Go on with weights of `version`."""
        self._paused += self.clock.now - (self._paused_at or 0.0)
        self._paused_at, self._since = None, self.clock.now
        self.version = version
        self._resumed.fire()

    def _request(self, groups: range) -> Process:
        """One request from its first token to the places of its groups."""
        for group in groups:
            self.first_version[group] = self.version
        end = self._engine_time() + self.draws.next("generation", self.plan.generation, self.plan.devices("rollout"))
        while (left := end - self._engine_time()) > 1e-9:
            if self._paused_at is None:
                yield left
            else:
                yield self._resumed
        self._count(-1)
        self.admit()
        yield self.draws.next("reward", self.plan.reward)
        for group in groups:
            self.window.finish(group)
        part = max(1, self.plan.rollout_batch_size // self.plan.num_iters_per_train_update)
        while (place := self.window.place()) is not None:
            partition = self.contents.setdefault(place.partition, [])
            partition.append(place.group)
            if place.last or len(partition) % part == 0:
                self._hand_on(place.partition, len(partition))

    def _hand_on(self, partition: int, groups: int) -> None:
        """Let other roles see the first `groups` of a partition when they have arrived."""

        def arrive() -> None:
            self.handed_on[partition] = max(self.handed_on[partition], groups)
            self.changed.fire()

        self.clock.after(self.draws.next("handover", self.plan.handover), arrive)

    def _engine_time(self) -> float:
        """Seconds in which requests made progress."""
        return (self.clock.now if self._paused_at is None else self._paused_at) - self._paused

    def _count(self, change: int) -> None:
        """Account for the time since the last change: the share of the slots in use, or all for any request."""
        if self._paused_at is None:
            slots = self.plan.slots
            share = self._running / slots if slots else float(self._running > 0)
            self.seen.work("rollout", "generation", share * (self.clock.now - self._since))
        self._since = self.clock.now
        self._running += change
