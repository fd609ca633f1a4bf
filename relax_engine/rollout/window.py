"""Which finished group goes into which partition: first in, first out, with look-ahead as far as the bound allows.

Plain state of the rollout role. The gate (`admission.py`) decides how many groups are under way; this decides
the order in which they are trained.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """A group's place: `last` says that its partition is full with it."""

    group: int
    partition: int
    last: bool


class PlacementWindow:
    """Fills partitions `first_partition, ...` with `groups_per_step` finished groups each.

    Partition `r` is trained at weight version `r`, so a group admitted at version `v` must be placed by partition
    `v + max_staleness`, its *deadline*. A finished group may overtake unfinished older ones as long as each of them
    can still meet its deadline: with `p` groups in the open partition `r`, and for every deadline `d` before the
    overtaker's,

        unplaced groups with deadline <= d   <=   (d - r + 1) * groups_per_step - (p + 1).

    Invariant: the inequality, with `p` for `p + 1`, holds for every `d` if admission keeps the gate's budget
    (`docs/design/admission.md`); hence every group is placed by its deadline, and none is ever dropped as stale. An
    unfinished group holds up training only when its deadline has come.

    With `in_order` nothing overtakes: rows do not depend on which group finishes first. With `max_staleness` 0, where
    a partition's groups are known when they are admitted, that only delays the start of a streaming step.

    Trace with `max_staleness=1, groups_per_step=2`; group 1 is slow::

        admit([0, 1, 2, 3], version=0)      deadline 1
        finish(0), finish(2), finish(3)
        place(), place(), place()        -> 0 and 2 in partition 0 (full), 3 in partition 1
        resume_point() before the last   -> (3, [1]): go on with group 3, and make group 1 again
        admit([4, 5], version=1)            deadline 2
        finish(4), finish(5); place()    -> None: the free place of partition 1 belongs to group 1
        finish(1); place()               -> 1 in partition 1 (full)
        place(), place()                 -> 4 and 5 in partition 2 (full)
    """

    def __init__(
        self,
        *,
        max_staleness: int,
        groups_per_step: int,
        first_partition: int = 0,
        placed: int = 0,
        in_order: bool = False,
    ) -> None:
        self.max_staleness = max_staleness
        self.groups_per_step = groups_per_step
        self.in_order = in_order
        self._partition = first_partition
        self._placed_here = placed  # of the first partition, before a restart
        self._deadlines: dict[int, int] = {}  # of groups that are not placed, in order of admission
        self._due: Counter[int] = Counter()  # how many of them by deadline
        self._finished: list[int] = []  # those of them that are finished, ascending
        self._frontier = 0

    def admit(self, groups: Iterable[int], version: int) -> None:
        """Groups whose first token comes from weights of `version` or later."""
        for group in groups:
            self._deadlines[group] = version + self.max_staleness
            self._due[version + self.max_staleness] += 1

    def finish(self, group: int) -> None:
        """The group may be placed."""
        insort(self._finished, group)

    def discard(self, group: int) -> None:
        """The group will not be trained: a filter refused it."""
        self._leave(group)

    def place(self) -> Placement | None:
        """The next place, taken by the oldest finished group; None while no finished group may have it."""
        if not self._finished or not self._may_place(self._finished[0]):
            return None
        group = self._finished.pop(0)
        self._leave(group)
        self._placed_here += 1
        placement = Placement(group, self._partition, last=self._placed_here == self.groups_per_step)
        if placement.last:
            self._partition, self._placed_here = self._partition + 1, 0
        return placement

    def resume_point(self) -> tuple[int, list[int]]:
        """Where a run continues that keeps what was placed: the first group after it, and earlier ones it left out."""
        return self._frontier, sorted(group for group in self._deadlines if group < self._frontier)

    def _leave(self, group: int) -> None:
        deadline = self._deadlines.pop(group)
        self._due[deadline] -= 1
        if not self._due[deadline]:
            del self._due[deadline]
        self._frontier = max(self._frontier, group + 1)

    def _may_place(self, group: int) -> bool:
        if self.in_order:
            return group == min(self._deadlines)
        waiting = 0
        for deadline in sorted(self._due):
            if deadline >= self._deadlines[group]:
                return True
            waiting += self._due[deadline]
            if waiting > (deadline - self._partition + 1) * self.groups_per_step - (self._placed_here + 1):
                return False
        return True


class FirstFinished:
    """Fills one partition at a time with the groups that finish first, of `surplus` more than it has places.

    At most `surplus` unplaced groups are older than one that is placed, so without a surplus the order is that of
    the numbers, and with one the oldest finished groups come first. Trace with `groups_per_step=2, surplus=1`::

        admit([0, 1, 2], version=0); finish(1); place()  -> 1    (0 may be missing)
        finish(2); place()                               -> 2, the last
        discard(0)                                       cut off; it may be admitted again
    """

    def __init__(self, *, groups_per_step: int, surplus: int, first_partition: int = 0, placed: int = 0) -> None:
        self.groups_per_step = groups_per_step
        self.surplus = surplus
        self._partition = first_partition
        self._placed_here = placed  # of the first partition, before a restart
        self._unplaced: set[int] = set()
        self._finished: list[int] = []

    def admit(self, groups: Iterable[int], version: int) -> None:
        """Groups that may be placed once they are finished; `version` does not matter here."""
        self._unplaced.update(groups)

    def finish(self, group: int) -> None:
        """The group may be placed."""
        insort(self._finished, group)

    def discard(self, group: int) -> None:
        """The group will not be placed, or not before it is admitted again."""
        self._unplaced.discard(group)
        if group in self._finished:
            self._finished.remove(group)

    def place(self) -> Placement | None:
        """The next place, taken by the oldest finished group; None while too many older ones are missing."""
        if not self._finished:
            return None
        group = self._finished[0]
        if sum(other < group for other in self._unplaced) > self.surplus:
            return None
        self._finished.pop(0)
        self._unplaced.discard(group)
        self._placed_here += 1
        placement = Placement(group, self._partition, last=self._placed_here == self.groups_per_step)
        if placement.last:
            self._partition, self._placed_here = self._partition + 1, 0
        return placement
