"""The staleness gate: how many prompt groups may be under way, and which.

Plain synchronous state with the time passed in; the stream's controller hosts one, so that the
rollout and the actor share it across processes. The order in which groups are trained is not
decided here but in `window.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class AdmittedGroup:
    """A group between admission and release. Times are the caller's clock in seconds."""

    number: int
    since: float
    engine: str | None = None
    assigned: float | None = None
    arrived: bool = False


class AdmissionGate:
    """Admits groups against the budget `B = (max_staleness + 1) * groups_per_step`, or `over_sampling` if that is more.

    A group's number is its `group_index`, counted over the whole run. Its slot is taken by
    `try_admit` and freed by `release`: when the group was trained, filtered or dropped as stale.
    Being put into the stream, or taken from it, frees nothing.

    `over_sampling` is for rollouts that start more groups than a step trains and cut the rest off: those keep
    their slots, and begin or go on later.

    Invariants: `0 <= occupied <= B`; every number is released at most once.

    A group admitted at version `v` can be trained by version `v + max_staleness`, and with places
    given by `PlacementWindow` it is: the proof is in `docs/design/admission.md`.

    After a restart the gate is rebuilt from the weight version (`recover`), never from a counter
    that starts at zero beside a version that does not: the free slots are `B`, whatever the version.

    Trace with `max_staleness=1, groups_per_step=2`, so `B = 4`::

        try_admit(3)                    -> [0, 1, 2]    free 1
        try_admit(2)                    -> None         free 1 (all or nothing)
        arrived([0, 1]); taken          -> still occupied, free 1
        release([0, 1], "trained")      -> free 3, version 1 is set by the actor
        try_admit(3)                    -> [3, 4, 5]    free 0
        recover(version=1, pending=[2], next_group=6) -> free 4
        try_admit(2)                    -> [2, 6]       pending numbers are admitted again first
    """

    def __init__(self, *, max_staleness: int, groups_per_step: int, over_sampling: int | None = None) -> None:
        if max_staleness < 0 or groups_per_step < 1:
            raise ValueError(
                f"need max_staleness >= 0 and groups_per_step >= 1; got {max_staleness} and {groups_per_step}"
            )
        self.max_staleness = max_staleness
        self.groups_per_step = groups_per_step
        self.over_sampling = groups_per_step if over_sampling is None else over_sampling
        self.version = 0
        self.admitted = 0
        self.released: dict[str, int] = {"trained": 0, "filtered": 0, "dropped_stale": 0}
        self._next = 0
        self._pending: list[int] = []
        self._under_way: dict[int, AdmittedGroup] = {}

    @property
    def budget(self) -> int:
        """Groups that may be under way at once."""
        return max((self.max_staleness + 1) * self.groups_per_step, self.over_sampling)

    @property
    def occupied(self) -> int:
        """Groups under way."""
        return len(self._under_way)

    @property
    def free(self) -> int:
        """Groups that `try_admit` would grant now."""
        return self.budget - self.occupied

    def try_admit(self, groups: int, now: float) -> list[int] | None:
        """Numbers for `groups` new groups, ascending (consecutive but after a restart); None while they do not fit.

        Raises:
            ValueError: more groups than the whole budget.
        """
        if not 1 <= groups <= self.budget:
            raise ValueError(
                f"cannot admit {groups} groups at once: the budget is {self.budget}, from max_staleness "
                f"{self.max_staleness}, groups_per_step {self.groups_per_step} and over_sampling {self.over_sampling}"
            )
        if groups > self.free:
            return None
        numbers = self._pending[:groups]
        del self._pending[:groups]
        fresh = groups - len(numbers)
        numbers += range(self._next, self._next + fresh)
        self._next += fresh
        self.admitted += groups
        for number in numbers:
            self._under_way[number] = AdmittedGroup(number, now)
        return numbers

    def assign(self, group: int, engine: str, now: float) -> None:
        """Remember which engine generates a group; unknown groups are ignored."""
        entry = self._under_way.get(group)
        if entry is not None:
            entry.engine, entry.assigned = engine, now

    def arrived(self, groups: Iterable[int]) -> None:
        """The groups' rows are in the stream; their slots stay taken."""
        for group in groups:
            entry = self._under_way.get(group)
            if entry is not None:
                entry.arrived = True

    def release(self, groups: Iterable[int], outcome: str) -> int:
        """Free the slots of groups that ended with `outcome`; returns how many were under way."""
        ended = sum(self._under_way.pop(group, None) is not None for group in set(groups))
        self.released[outcome] += ended
        return ended

    def set_version(self, version: int) -> None:
        """The trainer published weights `version`.

        Raises:
            ValueError: the version went back; use `recover` after a restart.
        """
        if version < self.version:
            raise ValueError(f"weight version {version} is older than {self.version}; a restart must call recover")
        self.version = version

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold for `recover`: `version`, `next_group`, `pending` (groups not yet released)."""
        return {
            "version": self.version,
            "next_group": self._next,
            "pending": sorted([*self._under_way, *self._pending]),
        }

    def recover(self, version: int, *, next_group: int | None = None, pending: Sequence[int] = ()) -> None:
        """Rebuild the gate for a run that continues at `version` with nothing under way.

        `pending` groups are admitted again first, under their old numbers. Without `next_group`
        the numbers continue at `version * groups_per_step`, the groups trained until then.

        Raises:
            ValueError: a pending number is not below `next_group`.
        """
        following = version * self.groups_per_step if next_group is None else next_group
        if any(number >= following for number in pending):
            raise ValueError(f"pending groups {sorted(pending)} must lie below next_group={following}")
        self.version = version
        self._next = following
        self._pending = sorted(pending)
        self._under_way = {}

    def withdraw(self) -> tuple[int, list[int]]:
        """Their producer is gone: groups that have not arrived leave their slots, and are admitted again first.

        Returns the first group that was never admitted, and those that come before it.
        """
        gone = [number for number, group in self._under_way.items() if not group.arrived]
        for number in gone:
            del self._under_way[number]
        self._pending = sorted([*self._pending, *gone])
        return self._next, list(self._pending)

    def missing(self) -> list[AdmittedGroup]:
        """Admitted groups whose rows have not arrived, longest wait first."""
        return sorted((g for g in self._under_way.values() if not g.arrived), key=lambda g: (g.since, g.number))

    def explain(self, now: float, limit: int = 8) -> str:
        """Which admitted groups are missing, since when, on which engine."""
        missing = self.missing()
        if not missing:
            return f"no admitted group is missing ({self.occupied} of {self.budget} slots taken)"
        parts = []
        for group in missing[:limit]:
            if group.engine is None:
                parts.append(f"group {group.number} for {now - group.since:.1f} s, not given to an engine")
            else:
                parts.append(f"group {group.number} for {now - (group.assigned or now):.1f} s on {group.engine}")
        more = f" and {len(missing) - limit} more" if len(missing) > limit else ""
        return f"admitted groups still missing: {'; '.join(parts)}{more}"
