"""The engines of one model, as scaling sees them: who there is, how one joins, how one leaves.

What lives here: single engines. What does not: requests about several of them (`growing.py`, `shrinking.py`), processes
and devices (behind `Launcher`), and weights (the actor, who is told of a newcomer by an event).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from relax_engine.elastic.external import engine_facts, require_generates, require_same
from relax_engine.elastic.failures import EngineJoinError, FailureCategory
from relax_engine.elastic.fence import WeightFence
from relax_engine.elastic.urls import EngineUrlError
from relax_engine.rollout.pool import EnginePool, PooledEngine

logger = logging.getLogger(__name__)

_CUT_S = 5.0

Emit = Callable[..., None]
"""`emit(kind, **values)` tells whoever watches the run."""


class Launcher(Protocol):
    """Starts and ends engine processes of the run."""

    async def launch(self, timeout_s: float) -> str:
        """URL of one more engine, on devices of its own.

        Raises:
            EngineJoinError: the cluster has no room for it in time, or it does not start.
        """

    async def end(self, url: str, timeout_s: float) -> None:
        """End the engine at `url`, if it still runs, and give its devices back."""

    def watch(self, url: str) -> None:
        """From now on, notice the end of the engine at `url`, which joined."""

    def details(self, url: str) -> Mapping[str, Any]:
        """`pid` and `node_id` of the engine at `url`, as far as they are known."""


class EngineFleet:
    """Engines in the order in which they came.

    Life of one that is added: `create` or `connect` -> `check` -> `sync` (it holds the weights) -> `activate`. It gets
    no request before the last. On its way out: `drain`, `cut`, `leave`, `end`; between the second and the third nobody
    may be sending weights (`fence`).
    """

    def __init__(
        self,
        pool: EnginePool,
        launcher: Launcher,
        emit: Emit,
        fence: WeightFence,
        *,
        cut: Callable[[str], Awaitable[None]],
        allow: Callable[[str], None],
    ) -> None:
        """Set up.

        Args:
            pool: The engines.
            launcher: Starts further ones.
            emit: Tells the controller, which has the actor send weights.
            fence: Closed while weights are sent.
            cut: Cuts off what another engine may continue, at the engine of that URL.
            allow: Raises `EngineUrlError` when the URL of an external engine leads where it may not.
        """
        self.pool, self.fence = pool, fence
        self._launcher, self._emit, self._cut, self._allow = launcher, emit, cut, allow

    # -- who there is ------------------------------------------------------------------------------

    @property
    def engines(self) -> list[PooledEngine]:
        """All that serve or will, oldest first: without those on their way in or out, or dead for good."""

        def counts(engine: PooledEngine) -> bool:
            dead = engine.quarantined is not None and not engine.waits and not self.pool.replaces
            return not (engine.reserved or engine.draining or dead)

        return [engine for engine in self.pool.engines.values() if counts(engine)]

    @property
    def protected(self) -> int:
        """How many of them were there from the start."""
        return sum(engine.origin == "initial" for engine in self.engines)

    def newest(self, count: int) -> list[str]:
        """The engines that leave first: the last that came, and none of the initial ones."""
        added = [engine.url for engine in self.engines if engine.origin != "initial"]
        return added[::-1][:count]

    def describe(self) -> list[dict[str, Any]]:
        """Every engine with its rank, status, URL, origin, process and node."""
        return [
            {
                "rank": rank,
                "url": url,
                "status": _status(engine),
                "origin": engine.origin,
                "outstanding": engine.outstanding,
                "reason": engine.quarantined,
                "pid": None,
                "node_id": None,
                **self._launcher.details(url),
            }
            for rank, (url, engine) in enumerate(self.pool.engines.items())
        ]

    # -- on the way in -----------------------------------------------------------------------------

    async def create(self, timeout_s: float) -> str:
        """Start an engine; returns its URL.

        Raises:
            EngineJoinError: there was no room, or it did not start.
        """
        url = await self._launcher.launch(timeout_s)
        self.pool.add(url, "ray_native")
        return url

    async def own_facts(self, timeout_s: float) -> dict[str, Any]:
        """What an engine that serves says about itself, to compare newcomers with.

        Raises:
            EngineJoinError: none serves.
        """
        own = next((engine.url for engine in self.engines if engine.usable), None)
        if own is None:
            raise EngineJoinError(FailureCategory.UNKNOWN, "no engine of the run serves, to compare others with")
        return await engine_facts(own, timeout_s)

    async def connect(self, url: str, timeout_s: float, expected: Mapping[str, Any] | None) -> None:
        """Take in the engine at `url`, which runs elsewhere, once it is known to serve the same model.

        Args:
            url: Where it answers.
            timeout_s: Its time to answer.
            expected: `own_facts`; None takes in whatever it serves.

        Raises:
            EngineJoinError: its address is not allowed, nobody answers there, or it serves something else.
        """
        try:
            await asyncio.to_thread(self._allow, url)
        except EngineUrlError as error:
            raise EngineJoinError(FailureCategory.INVALID_ENGINE_ADDRESS, str(error)) from error
        facts = await engine_facts(url, timeout_s)
        if expected is not None:
            require_same(url, facts, expected)
        self.pool.add(url, "external")

    async def check(self, url: str, timeout_s: float) -> None:
        """Have the engine generate.

        Raises:
            EngineJoinError: it does not.
        """
        await require_generates(url, timeout_s)

    async def sync(self, urls: Sequence[str], timeout_s: float) -> dict[str, EngineJoinError]:
        """Have the actor bring engines up to the present weights; returns why, for those that it did not."""
        for url in urls:
            self._emit("engine_started", engine=url, replaces=None)
        try:
            await asyncio.wait_for(self.pool.arrival(urls), timeout_s)
        except TimeoutError:
            logger.warning("not all of %s were sent weights in %g s", urls, timeout_s)
        failed = {}
        for url in urls:
            engine = self.pool.engines.get(url)
            if engine is None or engine.quarantined is not None:
                reason = "it left" if engine is None else engine.quarantined
                failed[url] = EngineJoinError(FailureCategory.WEIGHT_SYNC_FAILED, f"{url} holds no weights: {reason}")
        return failed

    async def activate(self, urls: Sequence[str]) -> None:
        """Give engines requests, and have their end noticed."""
        await self.pool.activate(urls)
        for url in urls:
            self._launcher.watch(url)

    # -- on the way out ----------------------------------------------------------------------------

    async def drain(self, urls: Sequence[str], timeout_s: float) -> None:
        """Give engines no further requests, and return when the last of them has ended, or after `timeout_s`."""
        waiting = []
        for url in urls:
            if url in self.pool.engines:
                self.pool.drain(url)
                waiting.append(asyncio.create_task(self.pool.engines[url].idle.wait()))
        if waiting:
            _, pending = await asyncio.wait(waiting, timeout=timeout_s)
            for task in pending:
                task.cancel()

    async def cut(self, urls: Sequence[str]) -> None:
        """Cut off what other engines may continue, and let the engines hand over what they have of it."""
        present = [url for url in urls if url in self.pool.engines]
        for url in present:
            self.pool.drain(url)
        busy = [url for url in present if self.pool.engines[url].outstanding]
        if busy:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*map(self._cut, busy)), _CUT_S)

    async def keep(self, urls: Sequence[str]) -> None:
        """Engines that were to leave stay."""
        for url in urls:
            self.pool.keep(url)
        await self.pool.activate(urls)

    async def leave(self, url: str) -> None:
        """The engine gets no weights and no requests from here on; those that it still has begin again elsewhere."""
        engine = self.pool.engines.get(url)
        if engine is not None:
            await self.pool.remove(url)
            self._emit("engine_left", engine=url, origin=engine.origin)

    async def end(self, url: str, timeout_s: float) -> None:
        """End the process of an engine that has left, and give its devices back; an external one only leaves."""
        await self._launcher.end(url, timeout_s)


def _status(engine: PooledEngine) -> str:
    if engine.reserved:
        return "joining"
    if engine.draining:
        return "draining"
    if engine.waits:
        return "starting"
    return "active" if engine.quarantined is None else "dead"
