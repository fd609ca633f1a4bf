"""Groups that wait: cut off, finished beyond what a partition holds, or not begun after a resume.

What lives here: order, the user's choice (`--buffer-filter-path`), and the form in a checkpoint. What does not:
admission, whose slot such a group keeps (`admission`), and prompts (`data_source`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from relax_engine.errors import RelaxError
from relax_engine.rollout.partial import is_touched
from relax_engine.types import Sample, SampleGroup

BufferFilter = Callable[[Any, int, list[SampleGroup], int], Sequence[SampleGroup]]
"""(args, rollout id, buffer, number of groups wanted) -> groups: what `--buffer-filter-path` names.

It removes the groups it returns from the list `buffer`; those it removes without returning are given up."""


class GroupBufferError(RelaxError):
    """A buffer filter did not do what it must, or a waiting group cannot be saved."""


class GroupBuffer:
    """Waiting groups, oldest first."""

    def __init__(self, choose: BufferFilter | None = None, args: Any = None) -> None:
        self._groups: list[SampleGroup] = []
        self._choose, self._args = choose, args

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def numbers(self) -> list[int]:
        """Group numbers, ascending."""
        return [group[0].group_index for group in self._groups]

    @property
    def groups(self) -> list[SampleGroup]:
        """The groups, in order of their numbers."""
        return list(self._groups)

    def add(self, groups: Iterable[SampleGroup]) -> None:
        """Put groups in."""
        self._groups = sorted([*self._groups, *groups], key=lambda group: group[0].group_index)

    def take(self, count: int, rollout_id: int) -> tuple[list[SampleGroup], list[SampleGroup]]:
        """At most `count` groups to go on with, and those that the user's filter gave up.

        Raises:
            GroupBufferError: the filter returned more groups than asked for, or some that are not in the buffer.
        """
        if self._choose is None:
            taken, self._groups = self._groups[:count], self._groups[count:]
            return taken, []
        before = {group[0].group_index: group for group in self._groups}
        left = list(self._groups)
        taken = list(self._choose(self._args, rollout_id, left, count))
        numbers = [group[0].group_index for group in taken]
        if len(taken) > count or len(set(numbers)) < len(numbers) or not set(numbers) <= set(before):
            raise GroupBufferError(
                f"--buffer-filter-path returned groups {numbers}; at most {count} of {sorted(before)} were asked for"
            )
        remaining = {group[0].group_index for group in left}
        if remaining & set(numbers) or not remaining <= set(before):
            raise GroupBufferError(
                f"--buffer-filter-path returned groups {numbers} and left {sorted(remaining)} in the buffer; "
                "remove what you return, add nothing"
            )
        self._groups = left
        return taken, [group for number, group in before.items() if number not in remaining | set(numbers)]


def pack_groups(groups: Iterable[SampleGroup]) -> list[list[dict[str, Any]]]:
    """All groups that hold more than their prompt, ready for JSON.

    Raises:
        GroupBufferError: a user's function put something else into a sample's metadata or reward; names the sample.
    """
    packed = [[sample.to_dict() for sample in group] for group in groups if is_touched(group)]
    for sample in (sample for group in packed for sample in group):
        try:
            json.dumps((sample["metadata"], sample["train_metadata"], sample["reward"]))
        except TypeError as error:
            raise GroupBufferError(
                f"sample {sample['index']} of group {sample['group_index']} waits and cannot be part of a checkpoint: "
                f"{error}; keep metadata and rewards to what JSON can hold"
            ) from error
    return packed


def resume_state(next_group: int, under_way: Mapping[int, SampleGroup]) -> dict[str, Any]:
    """Where a run goes on: the next new number, the numbers below it under way, and those groups that have content.

    Groups that were not begun, at the end, are left out: they come anyway.
    """
    pending = sorted(under_way)
    while pending and pending[-1] == next_group - 1 and not is_touched(under_way[pending[-1]]):
        next_group = pending.pop()
    groups = pack_groups(under_way[number] for number in pending)
    return {"next_group": next_group, "pending": pending, "groups": groups}


def unpack_groups(packed: Iterable[Iterable[dict[str, Any]]]) -> dict[int, SampleGroup]:
    """What `pack_groups` gave, by group number."""
    groups = [[Sample.from_dict(sample) for sample in group] for group in packed]
    return {group[0].group_index: group for group in groups}
