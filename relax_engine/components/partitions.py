"""From finished groups to sealed partitions of the stream.

What lives here: writing groups where the placement window puts them, and what a partition is sealed with. What does
not: where they go (`rollout/window.py`), and how they come to be (`rollout.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from relax_engine.algorithms import registry
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.components.mode import rows_per_part
from relax_engine.config import RunConfig
from relax_engine.rollout.convert import rollout_metrics, to_columns
from relax_engine.rollout.data_source import PromptDataSource
from relax_engine.rollout.window import PlacementWindow
from relax_engine.stream.client import StreamClient
from relax_engine.types import SampleGroup

Sealing = Callable[[int, dict[str, float]], Awaitable[None]]


@dataclass(slots=True)
class _OpenPartition:
    """What is known of the partition that is being filled."""

    groups: list[SampleGroup] = field(default_factory=list)
    unsent: list[SampleGroup] = field(default_factory=list)
    began: float = float("inf")


class PartitionWriter:
    """Writes groups to `train_<first>`, `train_<first + 1>`, ... as the window places them.

    A partition is `rollout_batch_size` prompt groups. It is sealed with the data position after it: a checkpoint
    taken when it was trained resumes with every group that was not in it or in an earlier one. `on_seal` is
    awaited with the partition's number and metrics before its readers see the end.
    """

    def __init__(
        self, config: RunConfig, stream: StreamClient, data: PromptDataSource, first: int, on_seal: Sealing
    ) -> None:
        self.args = config.flat
        self.stream = stream
        self.data = data
        self.on_seal = on_seal
        self.algorithm = AlgorithmSettings.from_config(self.args)
        self.spec = registry.get(self.algorithm.advantage_estimator)
        self.window = PlacementWindow(
            max_staleness=config.staleness_bound,
            groups_per_step=self.args.rollout_batch_size,
            first_partition=first,
            in_order=config.staleness_bound == 0,
        )
        self._began: dict[int, float] = {}
        self._finished: dict[int, SampleGroup] = {}
        self._transfer = rows_per_part(config) // self.args.n_samples_per_prompt
        self._open = _OpenPartition()
        self._turn = asyncio.Lock()

    def started(self, numbers: Iterable[int], version: int) -> None:
        """Groups were admitted while the engines hold weights of `version`."""
        numbers = list(numbers)
        self.window.admit(numbers, version)
        self._began |= dict.fromkeys(numbers, time.time())

    async def finished(self, groups: Sequence[SampleGroup]) -> None:
        """Groups are complete and scored; returns when everything that has a place is in the stream."""
        for group in groups:
            number = group[0].group_index
            self._finished[number] = group
            self.window.finish(number)
        async with self._turn:
            while (placement := self.window.place()) is not None:
                await self._write(placement.group, placement.partition, last=placement.last)

    async def _write(self, number: int, partition: int, *, last: bool) -> None:
        part = self._open
        group = self._finished.pop(number)
        part.groups.append(group)
        part.unsent.append(group)
        part.began = min(part.began, self._began.pop(number))
        if last or len(part.unsent) == self._transfer:
            batch = to_columns(part.unsent, self.spec, self.algorithm, self.args.reward_key)
            await self.stream.aput(f"train_{partition}", batch, deadline_s=self.args.wait_timeout)
            part.unsent = []
        if last:
            self._open = _OpenPartition()
            await self._seal(partition, part)

    async def _seal(self, partition: int, part: _OpenPartition) -> None:
        seconds = time.time() - part.began
        metrics = rollout_metrics(part.groups, self.args.reward_key)
        tokens = sum(sample.response_length for group in part.groups for sample in group)
        metrics["perf/rollout_time"] = seconds
        metrics["perf/rollout_tokens_per_second"] = tokens / max(seconds, 1e-9)
        position = self.data.position_at(*self.window.resume_point()).to_dict()
        await self.on_seal(partition, metrics)
        await asyncio.to_thread(
            self.stream.seal, f"train_{partition}", meta={"data_position": position, "metrics": metrics}
        )
