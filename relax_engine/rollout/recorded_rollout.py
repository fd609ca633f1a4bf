"""`--load-debug-rollout-data`: partitions of recorded samples, in place of sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from relax_engine.observe.bundle import BundleError, read_samples
from relax_engine.types import SampleGroup


class RecordedRollout:
    """Fills partition `r` with the recorded groups of rollout `r`, under the numbers that admission gives.

    The counterpart of `GroupFlow` in a run without engines.
    """

    def __init__(self, template: str, groups: int, admit: Callable[[int], Awaitable[list[int]]]) -> None:
        self.template, self.groups = template, groups
        self.counts: Counter[str] = Counter()
        self.seen: list[SampleGroup] = []
        self._admit = admit
        self._next_number = 0

    async def restore(self, next_number: int, pending: Sequence[int], groups: dict[int, SampleGroup]) -> None:
        """Continue with new numbers; what else was under way is not recorded here."""
        self._next_number = next_number

    def start(self, partitions: int) -> None:
        """Nothing runs ahead."""

    async def partition(self, rollout_id: int) -> AsyncIterator[SampleGroup]:
        """The recorded groups.

        Raises:
            BundleError: the rollout was not recorded, or has another number of groups.
        """
        groups = read_samples(self.template, rollout_id)
        if len(groups) != self.groups:
            raise BundleError(
                f"recorded rollout {rollout_id} has {len(groups)} groups, --rollout-batch-size is {self.groups}"
            )
        numbers = await self._admit(len(groups))
        self._next_number = max(self._next_number, *(number + 1 for number in numbers))
        self.seen += groups
        for number, group in zip(numbers, groups, strict=True):
            for sample in group:
                sample.group_index = number
            yield group

    def state(self) -> dict[str, Any]:
        """See `GroupFlow.state`."""
        return {"next_group": self._next_number, "pending": [], "groups": []}

    async def cut_for_weights(self) -> None:
        """Nothing is in flight."""

    async def cut_from(self, url: str) -> None:
        """No engine has a request."""

    async def weights_arrived(self, version: int) -> None:
        """No engine holds weights."""

    async def close(self) -> None:
        """Nothing to stop."""
