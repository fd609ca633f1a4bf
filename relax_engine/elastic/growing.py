"""Carrying a scale-out request out: every engine one stage further, then all of them the next.

What lives here: the stages, deadlines, and what becomes of a request that succeeds in part. What does not: single
engines (`fleet.py`), and whether a request is taken (`scaler.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from relax_engine.elastic.failures import EngineJoinError, FailureCategory, bounded
from relax_engine.elastic.fleet import EngineFleet
from relax_engine.elastic.requests import ScaleOut
from relax_engine.elastic.settings import ElasticSettings
from relax_engine.elastic.states import ScaleOutStatus as Out
from relax_engine.utils.ramp import Ramp

logger = logging.getLogger(__name__)

Changed = Callable[[ScaleOut], None]


class Growth:
    """One scale-out request under way.

    Invariants: an engine that it made is in the fleet, or has been ended, when the request is finished; none gets
    requests before the request is ACTIVE or PARTIAL. `run` does not raise: whatever fails is in the request.
    """

    def __init__(self, fleet: EngineFleet, settings: ElasticSettings, request: ScaleOut, changed: Changed) -> None:
        self.fleet, self.settings, self.request = fleet, settings, request
        self._changed = changed
        self._made: list[str] = []
        self._stage: asyncio.Task[None] | None = None

    async def run(self, count: int, version: Callable[[], int]) -> None:
        """Bring `count` new engines in, or those at the request's URLs; `version` says which weights are current."""
        self._stage = asyncio.create_task(self._grow(count, version))
        try:
            await self._stage
        except asyncio.CancelledError:
            if not self.request.cancelled:
                raise  # the run ends, and its engines with it
            await self._undo(Out.CANCELLED, "cancelled")
        except Exception as error:  # the request says it, and nobody waits for this task
            if not isinstance(error, EngineJoinError):
                logger.exception("scale-out %s failed", self.request.request_id)
            await self._undo(Out.FAILED, bounded(error))

    def cancel(self) -> None:
        """Stop, and take away what has been made."""
        self.request.cancelled = True
        if self._stage is not None:
            self._stage.cancel()

    async def _grow(self, count: int, version: Callable[[], int]) -> None:
        request = self.request
        if request.engine_urls:
            self._advance(Out.CONNECTING)
            expected = await self.fleet.own_facts(request.left()) if self.settings.precheck else None
            await self._all(request.engine_urls, partial(self._connect, expected))
        else:
            self._advance(Out.CREATING)
            await self._all([f"new engine {number + 1}" for number in range(count)], self._create)
        self._advance(Out.HEALTH_CHECKING)
        if self.settings.precheck:
            await self._all(self._present(), lambda url: self.fleet.check(url, request.left()))
        self._advance(Out.WEIGHT_SYNCING)
        failed = await self.fleet.sync(self._present(), request.left())
        for url, error in failed.items():
            request.lose(url, error)
        self._judge()
        self._advance(Out.READY)
        request.weight_version = version()
        for url in [url for url in self._made if url in request.failed_engines]:
            await self._remove(url)
        await self.fleet.activate(self._present())
        request.message = f"{len(self._present())} engines joined"
        self._advance(Out.PARTIAL if request.failed_engines else Out.ACTIVE)

    async def _create(self, _: str) -> None:
        self._took(await self.fleet.create(self.request.left()))

    async def _connect(self, expected: Mapping[str, Any] | None, url: str) -> None:
        await self.fleet.connect(url, self.request.left(), expected)
        self._took(url)

    def _took(self, url: str) -> None:
        self._made.append(url)
        self.request.engine_ids.append(url)

    def _present(self) -> list[str]:
        return [url for url in self._made if url not in self.request.failed_engines]

    async def _all(self, names: Sequence[str], work: Callable[[str], Awaitable[None]]) -> None:
        """One stage of every engine; the request's deadline is that of each."""
        left, ramp = self.request.left(), Ramp()

        async def one(name: str) -> None:
            async with asyncio.timeout(left), ramp.turn():
                await work(name)

        answers = await asyncio.gather(*map(one, names), return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, TimeoutError):
                message = f"{name} was not ready within {self.request.timeout_s:g} s"
                self.request.lose(name, EngineJoinError(self._late, message))
            elif isinstance(answer, Exception):
                self.request.lose(name, answer)
            elif isinstance(answer, BaseException):
                raise answer
        self._judge()

    @property
    def _late(self) -> FailureCategory:
        """What it means to miss the deadline in the present stage."""
        return {
            Out.CREATING: FailureCategory.PROVISION_TIMEOUT,
            Out.CONNECTING: FailureCategory.EXTERNAL_ENGINE_CONNECT_FAILED,
        }.get(self.request.status, FailureCategory.HEALTH_CHECK_FAILED)

    def _judge(self) -> None:
        """Return while the request may still succeed.

        Raises:
            EngineJoinError: no engine is left, or one failed and all must succeed.
        """
        request = self.request
        if not request.failed_engines:
            return
        if self._present() and self.settings.partial_policy == "keep_partial":
            return
        engine, reason = next(iter(request.failed_engines.items()))
        others = len(request.failed_engines) - 1
        raise EngineJoinError(request.failure_categories[engine], reason + (f" (and {others} more)" if others else ""))

    async def _undo(self, status: Out, message: str) -> None:
        """End the request without any engine."""
        self.request.message = message
        if self.request.status is not Out.PENDING:
            self._advance(Out.REMOVING)
            await asyncio.gather(*map(self._remove, self._made))
        self._advance(status)

    async def _remove(self, url: str) -> None:
        await self.fleet.leave(url)
        try:
            await self.fleet.end(url, self.settings.shutdown_timeout_s)
        except Exception as error:  # noqa: BLE001 - it has left; what remains of it ends with the run
            logger.warning("engine %s was not ended: %s", url, error)

    def _advance(self, status: Out) -> None:
        self.request.advance(status)
        self._changed(self.request)
