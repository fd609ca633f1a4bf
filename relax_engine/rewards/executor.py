"""Scoring samples: the right function for each, under a deadline, with every failure named.

What lives here: choosing the function, running it (synchronous ones in worker processes, coroutines
in this process), checking what comes back. What does not: worker processes (`pool`), the rewards.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from relax_engine.rewards.errors import RewardError
from relax_engine.rewards.functions import call_reward, is_async
from relax_engine.rewards.pool import WorkerPool
from relax_engine.rewards.registry import BUILTIN, RewardEntry, reward_entry
from relax_engine.rewards.settings import RewardSettings
from relax_engine.rewards.values import check_group_rewards, check_reward
from relax_engine.rewards.worker import CallResult
from relax_engine.types import Sample
from relax_engine.utils.hooks import absolute_reference, load_function

CANCEL_GRACE_S = 1.0

logger = logging.getLogger(__name__)


class RewardExecutor:
    """Fills `Sample.reward`; use it as a context manager, or call `close`.

    The function is `--custom-rm-path` if given, else the registered reward that
    `sample.metadata["rm_type"]` or `--rm-type` names. A failed call raises `RewardError`; there is no
    default score (but see `RewardEntry.timeout_score`: an answer that takes forever to compare is wrong).
    Synchronous functions see a copy of the sample: what they write to it is lost.
    """

    def __init__(self, settings: RewardSettings, args: Any) -> None:
        """Load a custom function, and start the worker processes if the configured reward needs them.

        Args:
            settings: The reward flags.
            args: What reward functions get as their first argument; pickled once.

        Raises:
            ValueError: an unknown `rm_type`, a bad path, or `group_rm` without a function for groups.
            ImportError: the custom function's module cannot be imported.
            TypeError: `args` cannot be pickled.
        """
        self._settings = settings
        self._args = args
        self._custom = _custom_entry(settings)
        self._pool: WorkerPool | None = None
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        default = self._custom or (reward_entry(settings.rm_type) if settings.rm_type else None)
        if default is not None and not default.run_async:
            self._worker_pool()

    def __enter__(self) -> RewardExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all worker processes. Idempotent."""
        if self._pool is not None:
            self._pool.close()

    async def score(self, samples: Sequence[Sample]) -> None:
        """Fill `reward` of every sample; with `group_rm`, one call per `group_index`.

        All calls finish before the first failure, in sample order, is raised.

        Raises:
            RewardError: a call failed.
            ValueError: a sample for which no reward is configured.
        """
        if self._settings.group_rm:
            groups: dict[int, list[Sample]] = {}
            for sample in samples:
                groups.setdefault(sample.group_index, []).append(sample)
            await _all(self.score_group(group) for group in groups.values())
        else:
            await _all(self._score_one(sample) for sample in samples)

    async def score_group(self, samples: Sequence[Sample]) -> None:
        """Fill `reward` of one prompt group with a single call `function(args, samples)`.

        Raises:
            RewardError: the call failed, or did not return one reward per sample.
        """
        group = list(samples)
        if not group:
            return
        entry = self._entry(group[0])
        result = await self._call(entry, group, group[0])
        try:
            rewards = check_group_rewards(result.value, len(group), self._settings.reward_key)
        except ValueError as error:
            raise self._error(entry, group[0], str(error), result.elapsed_s) from error
        for sample, reward in zip(group, rewards, strict=True):
            sample.reward = reward

    async def _score_one(self, sample: Sample) -> None:
        entry = self._entry(sample)
        result = await self._call(entry, sample, sample)
        try:
            sample.reward = check_reward(result.value, self._settings.reward_key)
        except ValueError as error:
            raise self._error(entry, sample, str(error), result.elapsed_s) from error

    def _entry(self, sample: Sample) -> RewardEntry:
        if self._custom is not None:
            return self._custom
        name = sample.metadata.get("rm_type") or self._settings.rm_type
        if name is None:
            raise ValueError(
                f"sample {sample.index} of group {sample.group_index} has no reward: "
                "give --rm-type or --custom-rm-path, or set rm_type in its metadata"
            )
        return reward_entry(name)

    async def _call(self, entry: RewardEntry, payload: Sample | list[Sample], sample: Sample) -> CallResult:
        if entry.run_async:
            return await self._run_here(entry, payload, sample)
        started = time.monotonic()
        try:
            future = self._worker_pool().submit(entry.reference, payload, self._settings.timeout_s)
        except Exception as error:
            cause = f"it cannot be sent to a worker: {type(error).__name__}: {error}"
            raise self._error(entry, sample, cause, time.monotonic() - started) from error
        result = await asyncio.wrap_future(future)
        if result.timed_out and entry.timeout_score is not None:
            logger.warning(
                "reward %s on sample %d of group %d: %s; it scores %g",
                *(entry.reference, sample.index, sample.group_index, result.cause, entry.timeout_score),
            )
            return CallResult(entry.timeout_score, result.elapsed_s)
        if result.cause:
            raise self._error(entry, sample, result.cause, result.elapsed_s, result.details)
        return result

    async def _run_here(self, entry: RewardEntry, payload: Sample | list[Sample], sample: Sample) -> CallResult:
        function = load_function(entry.reference)
        async with self._semaphore():
            started = time.monotonic()
            task = asyncio.ensure_future(call_reward(function, self._args, payload))
            try:
                done, _ = await asyncio.wait({task}, timeout=self._settings.timeout_s)
            except asyncio.CancelledError:
                task.cancel()
                raise
            elapsed = time.monotonic() - started
            if not done:
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
                cause = f"it missed its deadline of {self._settings.timeout_s:g} s and was cancelled"
                raise self._error(entry, sample, cause, elapsed)
            try:
                return CallResult(task.result(), elapsed)
            except (Exception, asyncio.CancelledError) as error:
                cause = f"{type(error).__name__}: {error}"
                raise self._error(entry, sample, cause, elapsed, traceback.format_exc()) from error

    def _worker_pool(self) -> WorkerPool:
        if self._pool is None:
            settings = self._settings
            built_in = BUILTIN.get(settings.rm_type or "") if self._custom is None else None
            self._pool = WorkerPool(
                args=self._args,
                max_workers=min(settings.num_workers, settings.max_concurrency),
                preload=(built_in.reference.partition(":")[0],) if built_in else (),
            )
        return self._pool

    def _semaphore(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(self._settings.max_concurrency))
        return self._slots[1]

    def _error(
        self, entry: RewardEntry, sample: Sample, cause: str, elapsed_s: float, details: str = ""
    ) -> RewardError:
        return RewardError(
            path=entry.reference,
            sample_index=sample.index,
            group_index=sample.group_index,
            cause=cause,
            elapsed_s=elapsed_s,
            details=details,
        )


def _custom_entry(settings: RewardSettings) -> RewardEntry | None:
    path = settings.custom_rm_path
    if path is not None:
        return RewardEntry(absolute_reference(path), is_async(load_function(absolute_reference(path))))
    if settings.group_rm and (settings.rm_type is None or settings.rm_type in BUILTIN):
        raise ValueError(
            f"--group-rm needs a reward for groups, and --rm-type {settings.rm_type} scores single samples: "
            "give --custom-rm-path"
        )
    return None


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    results = await asyncio.gather(*calls, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        if len(failures) > 1:
            failures[0].add_note(f"{len(failures) - 1} more reward calls failed")
        raise failures[0]
