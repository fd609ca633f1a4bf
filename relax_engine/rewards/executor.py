"""Scoring samples: the right function for each, under a deadline, with every failure named.

What lives here: running the functions (synchronous ones in worker processes, coroutines in this process), checking what
comes back, and what a failure costs. What does not: which function scores which sample (`choice`), worker processes
(`pool`), the rewards.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from relax_engine.rewards.boxed import last_boxed
from relax_engine.rewards.choice import RewardChoice, default_module
from relax_engine.rewards.errors import RewardError
from relax_engine.rewards.functions import call_reward
from relax_engine.rewards.pool import WorkerPool
from relax_engine.rewards.registry import RewardEntry
from relax_engine.rewards.settings import RewardSettings
from relax_engine.rewards.terms import OWN_REWARD, TOTAL, RewardTerm, combine, term_score
from relax_engine.rewards.values import Reward, check_group_rewards, check_reward
from relax_engine.rewards.worker import CallResult
from relax_engine.types import Sample
from relax_engine.utils.hooks import load_function

CANCEL_GRACE_S = 1.0
FAILURE = "reward_failure"

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Call(NamedTuple):
    """One call to make: a reward, what it scores, and the keyword arguments of `--reward-terms`."""

    entry: RewardEntry
    samples: list[Sample]
    as_group: bool = False
    arguments: Mapping[str, Any] = {}


class RewardExecutor:
    """Fills `Sample.reward`; use it as a context manager, or call `close`.

    A failed call raises `RewardError`, and there is no default score, with two exceptions. `--reward-failure-score`
    is the score of every failure. Without it, a built-in reward that hangs or dies gives its lowest score
    (`RewardEntry.lowest`): an answer that takes forever to compare is wrong. What was scored so has the cause in
    `metadata["reward_failure"]`. Synchronous functions see a copy of the sample: what they write to it is lost.
    """

    def __init__(self, settings: RewardSettings, args: Any) -> None:
        """Load a custom function, and start the worker processes if the configured reward needs them.

        Args:
            settings: The reward flags.
            args: What reward functions get as their first argument; pickled once.

        Raises:
            ValueError: an unknown reward, a bad path, or `group_rm` without a function for groups.
            ImportError: the custom function's module cannot be imported.
            TypeError: `args` cannot be pickled.
        """
        self._settings = settings
        self._args = args
        self._choice = RewardChoice(settings)
        self._pool: WorkerPool | None = None
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._expected = [
            self._choice.default if term.reward == OWN_REWARD else self._choice.entry(Sample(), term.reward)
            for term in settings.terms
        ] or [self._choice.default]
        if any(entry is not None and not entry.run_async for entry in self._expected):
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
        """Fill `reward` of every sample; one call per `group_index` with `group_rm`, or if the function has `samples`.

        All calls finish before the first failure, in sample order, is raised.

        Raises:
            RewardError: a call failed.
            ValueError: a sample for which no reward is configured.
        """
        if self._choice.as_group:
            groups: dict[int, list[Sample]] = {}
            for sample in samples:
                groups.setdefault(sample.group_index, []).append(sample)
            await _all(self.score_group(group) for group in groups.values())
        elif self._settings.terms:
            await _all(self._score_terms(sample) for sample in samples)
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
        key = self._settings.reward_key
        rewards: list[Reward] = await self._value(
            _Call(self._choice.entry(group[0]), group, as_group=True),
            check=lambda value: check_group_rewards(value, len(group), key),
            instead=lambda score: [score for _ in group],
        )
        for sample, reward in zip(group, rewards, strict=True):
            sample.reward = reward

    async def _score_one(self, sample: Sample) -> None:
        sample.reward = await self._value(
            _Call(self._choice.entry(sample), [sample]),
            check=lambda value: check_reward(value, self._settings.reward_key),
            instead=lambda score: score,
        )

    async def _score_terms(self, sample: Sample) -> None:
        """The weighted sum of the terms, each scored as if it were alone."""
        terms = self._settings.terms
        scores: dict[str, float] = {}

        async def score(term: RewardTerm) -> None:
            name = None if term.reward == OWN_REWARD else term.reward
            call = _Call(self._choice.entry(sample, name), [sample], arguments=term.arguments)
            scores[term.name] = await self._value(call, check=term_score, instead=lambda score: score)

        await _all(score(term) for term in terms)
        sample.reward = combine(terms, [scores[term.name] for term in terms], self._settings.reward_key or TOTAL)

    async def _value(self, call: _Call, check: Callable[[Any], T], instead: Callable[[float], T]) -> T:
        """What the call gives after `check`, or what `instead` makes of the score of a failure.

        Raises:
            RewardError: it failed, and failures of its kind have no score.
        """
        error: BaseException | None = None
        if call.entry.run_async:
            result, error = await self._run_here(call)
        else:
            result, error = await self._run_in_worker(call)
        cause = result.cause
        if not cause:
            try:
                return check(result.value)
            except ValueError as wrong:
                cause, error = str(wrong), wrong
        score = self._settings.failure_score
        if score is None and result.lost:
            score = call.entry.lowest
        first = call.samples[0]
        failure = RewardError(
            path=call.entry.reference,
            sample_index=first.index,
            group_index=first.group_index,
            cause=cause,
            elapsed_s=result.elapsed_s,
            details=result.details,
        )
        if score is None:
            raise failure from error
        logger.warning("%s; it scores %g", failure, score)
        for sample in call.samples:
            sample.metadata[FAILURE] = cause
        return instead(score)

    async def _run_in_worker(self, call: _Call) -> tuple[CallResult, BaseException | None]:
        started = time.monotonic()
        try:
            payload = _payload(call)
            future = self._worker_pool().submit(call.entry.reference, payload, self._settings.timeout_s, call.arguments)
        except Exception as error:  # noqa: BLE001 - whatever the user's objects raise when pickled
            cause = f"it cannot be sent to a worker: {type(error).__name__}: {error}"
            return CallResult(None, time.monotonic() - started, cause), error
        return await asyncio.wrap_future(future), None

    async def _run_here(self, call: _Call) -> tuple[CallResult, BaseException | None]:
        function = load_function(call.entry.reference)
        async with self._semaphore():
            started = time.monotonic()
            task = asyncio.ensure_future(call_reward(function, self._args, _payload(call), call.arguments))
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
                return CallResult(None, elapsed, cause, lost=True), None
            try:
                return CallResult(task.result(), elapsed), None
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - user code; told to the caller
                return CallResult(None, elapsed, f"{type(error).__name__}: {error}", traceback.format_exc()), error

    def _worker_pool(self) -> WorkerPool:
        if self._pool is None:
            settings = self._settings
            self._pool = WorkerPool(
                args=self._args,
                max_workers=min(settings.num_workers, settings.max_concurrency),
                preload=sorted({module for entry in self._expected for module in default_module(entry)}),
            )
        return self._pool

    def _semaphore(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(self._settings.max_concurrency))
        return self._slots[1]


def _payload(call: _Call) -> Sample | list[Sample]:
    """What the function is given: the samples, or the one, as its box alone where the name begins with `boxed_`."""
    samples = call.samples
    if call.entry.boxed:
        samples = [dataclasses.replace(sample, response=last_boxed(sample.response) or "") for sample in samples]
    return samples if call.as_group else samples[0]


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    results = await asyncio.gather(*calls, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        if len(failures) > 1:
            failures[0].add_note(f"{len(failures) - 1} more reward calls failed")
        raise failures[0]
