"""`--rollout-function-path` and `--eval-function-path`: the user makes a whole rollout, or a whole evaluation.

    def generate_rollout(args, rollout_id, data_buffer, data_system_client, evaluation=False)

It returns `RolloutFnTrainOutput` (or a list of groups), and with `evaluation=True` `RolloutFnEvalOutput`. It runs in a
thread of its own, so it may block; it may be a coroutine function.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from relax_engine.access.policy import revealed_engine_key
from relax_engine.config.flat import FlatView
from relax_engine.rollout.buffer import GroupBuffer, resume_state
from relax_engine.rollout.custom_generate import check_generated, complete_generated
from relax_engine.rollout.flow_settings import FlowHooks
from relax_engine.rollout.pool import EnginePool, RolloutError
from relax_engine.types import SampleGroup
from relax_engine.utils.hooks import load_function


@dataclass(slots=True)
class RolloutFnTrainOutput:
    """A rollout: its groups, each with rewards or to be scored, and metrics to log beside the built-in ones."""

    samples: list[SampleGroup]
    metrics: dict[str, float] | None = None


@dataclass(slots=True)
class RolloutFnEvalOutput:
    """An evaluation: `{dataset: {"rewards": [...], "truncated": [...], "samples": [...]}}`, and metrics."""

    data: dict[str, dict[str, list[Any]]]
    metrics: dict[str, float] | None = field(default=None)


class DataBuffer:
    """Where a rollout function takes prompts from. Its methods block, and are for the function's thread only."""

    def __init__(self, flow: CustomRollout, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        self._flow, self._loop, self._deadline_s = flow, loop, deadline_s

    def get_samples(self, num_samples: int) -> list[SampleGroup]:
        """The next prompt groups: those put back first, then new ones, as soon as the staleness bound admits them."""
        taking = asyncio.run_coroutine_threadsafe(self._flow.take(num_samples), self._loop)
        return taking.result(self._deadline_s)

    def add_samples(self, samples: Sequence[SampleGroup]) -> None:
        """Put groups back, finished or not, for a later rollout; they keep their admission slots."""
        asyncio.run_coroutine_threadsafe(self._flow.put_back(samples), self._loop).result(self._deadline_s)

    def get_buffer_length(self) -> int:
        """Groups that were put back."""
        return len(self._flow.buffer)


class RolloutFunction:
    """The user's function, called in a thread of its own.

    `args` are the run's, with `engine_urls`, and `sglang_router_ip` and `sglang_router_port` of the least busy engine.
    """

    def __init__(self, path: str, pool: EnginePool, args: FlatView, client: Any) -> None:
        self.path, self.pool, self.args, self.client = path, pool, args, client
        self._function = load_function(path)

    async def call(self, rollout_id: int, buffer: DataBuffer | None, *, evaluation: bool) -> Any:
        """What it returns.

        Raises:
            RolloutError: it failed; names it and the rollout.
        """
        urls = [engine.url for engine in self.pool.usable()]
        address = urlsplit(urls[0])
        values = {"engine_urls": urls, "sglang_router_ip": address.hostname, "sglang_router_port": address.port}
        args = FlatView(vars(self.args) | values | {"sglang_api_key": revealed_engine_key()})

        def run() -> Any:
            result = self._function(args, rollout_id, buffer, self.client, evaluation=evaluation)
            return asyncio.run(_await(result)) if inspect.isawaitable(result) else result

        try:
            return await asyncio.to_thread(run)
        except RolloutError:
            raise
        except Exception as error:
            what = "evaluation" if evaluation else "rollout"
            raise RolloutError(f"{self.path} failed in {what} {rollout_id}: {type(error).__name__}: {error}") from error


class CustomRollout:
    """Fills partitions with what the user's function returns; the counterpart of `GroupFlow`.

    A group that the function took is returned, put back, or given up (counted as filtered).
    """

    def __init__(self, function: RolloutFunction, hooks: FlowHooks, buffer: GroupBuffer) -> None:
        self.function, self.hooks, self.buffer = function, hooks, buffer
        self.path, self.args = function.path, function.args
        self.version = 0
        self.counts: Counter[str] = Counter()
        self.seen: list[SampleGroup] = []
        self._taken: dict[int, SampleGroup] = {}
        self._next_number = 0
        self._rollout_id = 0

    async def restore(self, next_number: int, pending: Sequence[int], groups: dict[int, SampleGroup]) -> None:
        """See `GroupFlow.restore`."""
        self._next_number = next_number
        if pending:
            numbers = await self.hooks.admit(len(pending))
            self.buffer.add([groups[n] if n in groups else await self.hooks.prompt(n) for n in numbers])

    def start(self, partitions: int) -> None:
        """Nothing runs ahead of the function."""

    async def take(self, count: int) -> list[SampleGroup]:
        """For `DataBuffer.get_samples`."""
        taken, given_up = self.buffer.take(count, self._rollout_id)
        if given_up:
            await self.hooks.give_up(given_up)
        if count > len(taken):
            numbers = await self.hooks.admit(count - len(taken))
            self._next_number = max(self._next_number, *(number + 1 for number in numbers))
            taken += [await self.hooks.prompt(number) for number in numbers]
        self._taken |= {group[0].group_index: group for group in taken}
        return taken

    async def put_back(self, groups: Sequence[SampleGroup]) -> None:
        """For `DataBuffer.add_samples`."""
        self._release(groups)
        self.buffer.add(groups)

    async def partition(self, rollout_id: int) -> AsyncIterator[SampleGroup]:
        """The groups that the function returns.

        Raises:
            RolloutError: it failed, returned another number of groups, or samples that cannot be trained on.
        """
        self._rollout_id, version = rollout_id, self.version
        buffer = DataBuffer(self, asyncio.get_running_loop(), self.args.wait_timeout)
        output = await self.function.call(rollout_id, buffer, evaluation=False)
        groups: list[SampleGroup] = list(getattr(output, "samples", output))
        self.counts.update(getattr(output, "metrics", None) or {})
        if len(groups) != self.args.rollout_batch_size:
            raise RolloutError(
                f"{self.path} returned {len(groups)} groups for rollout {rollout_id}, "
                f"--rollout-batch-size is {self.args.rollout_batch_size}"
            )
        self._release(groups)
        for group in groups:
            for sample in group:
                check_generated(self.path, sample, sample)
                complete_generated(sample, version)
        await self.hooks.score([sample for group in groups for sample in group if sample.reward is None])
        self.seen += groups
        if self._taken:
            await self.hooks.give_up(list(self._taken.values()))
            self._taken.clear()
        for group in groups:
            yield group

    def _release(self, groups: Sequence[SampleGroup]) -> None:
        """The function has done with these groups, which it must have taken."""
        for group in groups:
            if self._taken.pop(group[0].group_index, None) is None:
                raise RolloutError(
                    f"{self.path} handed over group {group[0].group_index}, which it did not take with get_samples "
                    f"in rollout {self._rollout_id}"
                )

    def state(self) -> dict[str, Any]:
        """See `GroupFlow.state`."""
        return resume_state(self._next_number, {group[0].group_index: group for group in self.buffer.groups})

    async def cut_for_weights(self) -> None:
        """The function's requests go on in the engines."""

    async def cut_from(self, url: str) -> None:
        """The function asks engines itself."""

    async def weights_arrived(self, version: int) -> None:
        """Engines hold weights of `version`."""
        self.version = version

    async def close(self) -> None:
        """The function's thread ends with its process."""


async def _await(result: Any) -> Any:
    return await result


def check_evaluation(path: str, output: Any) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """The data of what an evaluation function returned.

    Raises:
        RolloutError: a data set has no rewards, or another number of something else.
    """
    data: Any = getattr(output, "data", output)
    if not isinstance(data, Mapping) or not data:
        raise RolloutError(f"{path} returned {output!r:.80}; return RolloutFnEvalOutput(data)")
    for name, entry in data.items():
        rewards = entry.get("rewards") if isinstance(entry, Mapping) else None
        if not rewards:
            raise RolloutError(f"{path} returned no rewards for {name!r}")
        for key in ("truncated", "samples"):
            if key in entry and len(entry[key]) != len(rewards):
                raise RolloutError(f"{path}: {name!r} has {len(rewards)} rewards and {len(entry[key])} {key}")
    return data
