"""Groups on their way from a prompt to a place in a partition: how many run, which are kept, what is cut off.

What lives here: the order of events, as plain asyncio. What does not: requests (`generate`), the stream (the role).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from relax_engine.errors import first_cause
from relax_engine.rollout.buffer import GroupBuffer, resume_state
from relax_engine.rollout.filters import LOST, SampleFilter, apply_filter, is_lost
from relax_engine.rollout.flow_settings import FlowHooks, FlowSettings
from relax_engine.rollout.generate import CUT, Generator
from relax_engine.rollout.partial import (
    begin_again,
    is_finished,
    is_touched,
    mask_off_policy,
    newest_version,
    oldest_version,
)
from relax_engine.rollout.pool import PooledEngine, RolloutError
from relax_engine.rollout.window import FirstFinished, PlacementWindow
from relax_engine.types import SampleGroup

logger = logging.getLogger(__name__)

_ABORT_AGAIN_S = 0.5


class GroupFlow:
    """Groups under way, and the partitions that they fill.

    Life of a group: admitted (or taken from the buffer) -> running -> scored -> kept or left out by the filter ->
    ready -> placed. Cut off while running, it goes on at once (`ahead`) or returns to the buffer with its slot.
    Invariant: a number is in exactly one of starting, running, ready and buffer. Which ready group is placed is said by
    a window (`window.py`).

    Trace, 2 groups of 3 under way, `ahead` off::

        start 0, 1, 2      running {0, 1, 2}
        1 and 2 end        ready {1, 2}; both are placed (one older group may be missing)
        partition full     0 is cut off -> buffer {0}
        next partition     0 goes on, 3 and 4 start: running {0, 3, 4}
    """

    def __init__(
        self,
        settings: FlowSettings,
        hooks: FlowHooks,
        generator: Generator,
        buffer: GroupBuffer,
        *,
        first_partition: int = 0,
        placed: int = 0,
        sample_filter: SampleFilter | None = None,
        args: Any = None,
    ) -> None:
        self.window: PlacementWindow | FirstFinished = (
            PlacementWindow(
                max_staleness=settings.max_staleness,
                groups_per_step=settings.groups,
                first_partition=first_partition,
                placed=placed,
                in_order=settings.max_staleness == 0,
            )
            if settings.ahead
            else FirstFinished(
                groups_per_step=settings.groups,
                surplus=settings.surplus,
                first_partition=first_partition,
                placed=placed,
            )
        )
        self.settings, self.hooks, self.generator, self.buffer = settings, hooks, generator, buffer
        self.version = 0
        self.counts: Counter[str] = Counter()
        self.seen: list[SampleGroup] = []
        self._filter, self._args = sample_filter, args
        self._starting: dict[int, SampleGroup | None] = {}
        self._running: dict[int, SampleGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: dict[int, SampleGroup] = {}
        self._next_number = 0
        self._placed = placed  # of the first partition, by the process before this one
        self._wanted = 0
        self._left_out = 0
        self._rollout_id = 0
        self._cutting = False
        self._changed = asyncio.Condition()
        self._feeding = asyncio.Lock()
        self._feeder: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    # -- filling partitions ------------------------------------------------------------------

    async def restore(self, next_number: int, pending: Sequence[int], groups: dict[int, SampleGroup]) -> None:
        """Continue a run: `pending` groups hold slots again, and wait in the buffer with what they had."""
        self._next_number = next_number
        if pending:
            numbers = await self.hooks.admit(len(pending))
            self.buffer.add([groups[n] if n in groups else await self.hooks.prompt(n) for n in numbers])

    def start(self, partitions: int) -> None:
        """Begin to start groups: with `ahead` those of all `partitions` still to come."""
        if self.settings.ahead:
            self._wanted = partitions * self.settings.groups - self._placed
        self._feeder = asyncio.create_task(self._feed(), name="group feeder")

    async def partition(self, rollout_id: int) -> AsyncIterator[SampleGroup]:
        """The groups of the partition, as they may be placed.

        Raises:
            RolloutError: the filter leaves out too many groups, or nothing happens until the deadline.
        """
        self._rollout_id, self._left_out = rollout_id, 0
        groups, self._placed = self.settings.groups - self._placed, 0
        if not self.settings.ahead:
            async with self._changed:
                self._wanted = groups
                self._changed.notify_all()
        for _ in range(groups):
            yield await self._next_placed()
        if not self.settings.ahead:
            await self._settle()

    async def upcoming(self) -> list[SampleGroup]:
        """The groups that the next partition starts with, between two of them; they are not admitted by this."""
        count = self.settings.groups + self.settings.surplus
        numbers = [*self.buffer.numbers, *range(self._next_number, self._next_number + count)]
        return [await self.hooks.prompt(number) for number in numbers[:count]]

    def state(self) -> dict[str, Any]:
        """What is under way, for a checkpoint; see `resume_state`."""
        under_way: dict[int, SampleGroup] = {number: group or [] for number, group in self._starting.items()}
        under_way |= {**self._running, **self._ready, **{g[0].group_index: g for g in self.buffer.groups}}
        return resume_state(self._next_number, under_way)

    async def _next_placed(self) -> SampleGroup:
        deadline = time.monotonic() + self.settings.deadline_s
        async with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                placement = self.window.place()
                if placement is not None:
                    self._wanted -= 1
                    self._changed.notify_all()
                    return self._ready.pop(placement.group)
                left = deadline - time.monotonic()
                try:
                    await asyncio.wait_for(self._changed.wait(), max(0.0, left))
                except TimeoutError:
                    raise RolloutError(
                        f"rollout {self._rollout_id}: no group became ready in {self.settings.deadline_s:g} s; "
                        f"running {sorted(self._running)}, ready {sorted(self._ready)}, waiting {self.buffer.numbers}"
                    ) from None

    # -- starting groups ---------------------------------------------------------------------

    def _room(self) -> int:
        """How many groups may start now."""
        under_way = len(self._running) + len(self._ready)
        return 0 if self._wanted <= 0 else self._wanted + self.settings.surplus - under_way

    async def _feed(self) -> None:
        """Start groups while there is room, for ever."""
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._room() > 0)
                room = self._room()
                if self.settings.ahead:
                    room = 1
                async with self._feeding:
                    groups = await self._groups(room)
                    async with self._changed:
                        self._begin(groups)
                        self._starting.clear()
                        self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits for a group
            await self._fail(error)

    async def _groups(self, count: int) -> list[SampleGroup]:
        """Groups to go on with: from the buffer, then new ones."""
        taken, given_up = self.buffer.take(count, self._rollout_id)
        self._starting = {group[0].group_index: group for group in taken}
        if given_up:
            self.counts["given_up"] += len(given_up)
            await self.hooks.give_up(given_up)
        for group in taken:
            self._refresh(group)
            oldest = oldest_version(group)
            self.window.admit([group[0].group_index], self.version if oldest is None else oldest)
        fresh = count - len(taken)
        if fresh > 0:
            numbers = await self.hooks.admit(fresh)
            self._starting |= dict.fromkeys(numbers)
            self.window.admit(numbers, self.version)
            self._next_number = max(self._next_number, *(number + 1 for number in numbers))
            admitted = time.time()
            new = [await self.hooks.prompt(number) for number in numbers]
            _stamp(new, "admitted", admitted)
            taken += new
        return taken

    def _refresh(self, group: SampleGroup) -> None:
        """A group of the buffer, as it may go on under the present weights."""
        if not is_touched(group):
            return
        finished = all(is_finished(sample) for sample in group)
        masked = self.settings.mask_off_policy and not finished
        if (self._is_too_old(group) and not masked) or not (finished or self.settings.partial):
            self._sample_anew(group)
        else:
            self.counts["continued"] += 1

    def _is_too_old(self, group: SampleGroup) -> bool:
        """Whether it would be, when the partition that is being filled is trained: at weight version `rollout_id`."""
        oldest = oldest_version(group)
        return oldest is not None and self._rollout_id - oldest > self.settings.max_staleness

    def _sample_anew(self, group: SampleGroup) -> None:
        self.counts["begun_again"] += 1
        for sample in group:
            begin_again(sample)

    def _begin(self, groups: list[SampleGroup]) -> None:
        for group in groups:
            number = group[0].group_index
            if all(is_finished(sample) and sample.reward is not None for sample in group):
                self._ready[number] = group
                self.window.finish(number)
            else:
                self._running[number] = group
        groups = [group for group in groups if group[0].group_index in self._running]
        engines: Sequence[PooledEngine | None] = [None] * len(groups)
        if self.settings.batched:
            engines = self.generator.pool.usable() or [None]
        for engine, part in zip(engines, _split(groups, len(engines)), strict=True):
            if part:
                task = asyncio.create_task(self._work(part, engine))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    # -- one request -------------------------------------------------------------------------

    async def _work(self, groups: list[SampleGroup], engine: PooledEngine | None) -> None:
        try:
            while True:
                started = time.time()
                _stamp(groups, "started", started, again=False)
                await self.generator.generate(groups, engine)
                self.hooks.record("generate", started)
                _stamp(groups, "generated", time.time())
                engine = None
                if all(is_finished(sample) for group in groups for sample in group):
                    break
                if not self.settings.ahead:
                    self.counts["cut_off"] += len(groups)
                    return await self._return(groups)
                # Cut off for new weights: go on where the response ends, once they are there.
                self.counts["continued"] += len(groups)
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._cutting)
            await self._finish(groups)
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits for a group
            await self._fail(error)

    async def _finish(self, groups: list[SampleGroup]) -> None:
        started = time.time()
        made = [group for group in groups if not is_lost(group)]
        await self.hooks.score([sample for group in made for sample in group if sample.reward is None])
        self.hooks.record("reward", started)
        _stamp(groups, "scored", time.time())
        self.seen += made
        left_out: dict[int, SampleGroup] = {}
        for group in groups:
            decision = LOST if is_lost(group) else None
            if decision is None and self._filter is not None:
                decision = apply_filter(self._filter, self._args, group)
            if decision is not None and not decision.keep:
                self.counts[f"filtered/{decision.reason}"] += 1
                left_out[group[0].group_index] = group
            elif self.settings.mask_off_policy and any(sample.abort_count for sample in group):
                self.counts["masked_tokens"] += mask_off_policy(group, newest_version(group) or 0)
        if left_out:
            await self.hooks.give_up(list(left_out.values()))
        async with self._changed:
            for group in groups:
                number = group[0].group_index
                del self._running[number]
                if number in left_out:
                    self.window.discard(number)
                else:
                    self._ready[number] = group
                    self.window.finish(number)
            self._left_out += len(left_out)
            if left_out:
                self._check_attempts()
            self._changed.notify_all()

    def _check_attempts(self) -> None:
        limit = self.settings.max_attempts * self.settings.groups
        if self._left_out < limit:
            return
        reasons = {name: count for name, count in sorted(self.counts.items()) if name.startswith("filtered/")}
        path = self._args.dynamic_sampling_filter_path
        who = "failures" if path is None else f"failures and --dynamic-sampling-filter-path {path}"
        raise RolloutError(
            f"rollout {self._rollout_id}: {who} "
            f"left out {self._left_out} groups, {self.settings.max_attempts} rollouts' worth ({reasons}), and "
            f"{self._wanted} are still wanted; give prompts of fitting difficulty, more --n-samples-per-prompt, "
            "another filter, agents that do not fail, or a larger --dynamic-sampling-max-attempts"
        )

    async def _return(self, groups: list[SampleGroup]) -> None:
        async with self._changed:
            for group in groups:
                del self._running[group[0].group_index]
                self.window.discard(group[0].group_index)
                if not self.settings.partial:
                    self._sample_anew(group)
            self.buffer.add(groups)
            self._changed.notify_all()

    async def _fail(self, error: BaseException) -> None:
        async with self._changed:
            self._error = self._error or first_cause(error)
            self._changed.notify_all()

    # -- cutting off -------------------------------------------------------------------------

    async def _settle(self) -> None:
        """After a full partition: everything else that is under way goes to the buffer."""
        self._wanted = 0
        async with self._feeding:  # what is being started now runs, and is cut off with the rest
            pass
        deadline = time.monotonic() + self.settings.deadline_s
        if self.settings.partial:
            # Those that were cut off too often already run to their end.
            await self._wait_tasks(lambda: any(map(self.generator.is_protected, self._running.values())), deadline)
        with self.generator.interruption():
            while self._tasks:
                await self.generator.cut()
                await self._wait_tasks(lambda: bool(self._tasks), min(deadline, time.monotonic() + _ABORT_AGAIN_S))
                if self._tasks and time.monotonic() > deadline:
                    raise RolloutError(f"groups {sorted(self._running)} did not end within the deadline after an abort")
        if self._error is not None:
            raise self._error
        for number in self._ready:
            self.window.discard(number)
        self.buffer.add(self._ready.values())
        self._ready.clear()

    async def _wait_tasks(self, busy: Callable[[], bool], deadline: float) -> None:
        while self._tasks and busy() and time.monotonic() < deadline:
            await asyncio.wait(self._tasks, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)

    async def cut_for_weights(self) -> None:
        """New weights come: cut off what may be continued with them; it waits for `weights_arrived`."""
        if not (self.settings.partial and self.settings.ahead):
            return
        self._cutting = True
        with self.generator.interruption():
            await self.generator.pool.abort(CUT)

    async def cut_from(self, url: str) -> None:
        """An engine leaves: cut off what another one may continue."""
        if self.settings.partial:
            await self.generator.cut_from(url)

    async def weights_arrived(self, version: int) -> None:
        """Engines hold weights of `version`."""
        async with self._changed:
            self.version = version
            self._cutting = False
            self._changed.notify_all()

    async def close(self) -> None:
        """Stop all that is under way."""
        tasks = [*self._tasks, *([self._feeder] if self._feeder is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _stamp(groups: Sequence[SampleGroup], what: str, when: float, *, again: bool = True) -> None:
    """Note on every sample when it came so far; the first time where it is not to be noted `again`."""
    for group in groups:
        for sample in group:
            if again or what not in sample.timings:
                sample.timings[what] = when


def _split(groups: list[SampleGroup], parts: int) -> list[list[SampleGroup]]:
    """Consecutive groups for `parts` requests, as even as possible."""
    if parts == 0:
        return []
    share, rest = divmod(len(groups), parts)
    ends = [share * (i + 1) + min(i + 1, rest) for i in range(parts)]
    return [groups[start:end] for start, end in zip([0, *ends], ends, strict=False)]
