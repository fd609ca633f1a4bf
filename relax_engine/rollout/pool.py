"""The engines as the rollout uses them: the least busy one first, and another one when one dies.

What lives here: which engine gets a request, and what its failure means. What does not: starting engines, and
weights (the actor).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Self, TypeVar

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import (
    EngineCallError,
    EngineDeadlineError,
    EngineRefusedError,
    EngineUnreachableError,
)
from relax_engine.errors import RelaxError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS = 4
_HEALTH_S = 20.0


class RolloutError(RelaxError):
    """No engine can serve the rollout, or the rollout cannot make the batch that was asked for."""


class EnginesLostError(RolloutError):
    """Requests found no engine that lives."""


@dataclass(slots=True)
class PooledEngine:
    """One engine. `outstanding` counts samples asked for and not answered; `quarantined` says why it is not used."""

    client: EngineClient
    outstanding: int = 0
    quarantined: str | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.client.url


class EnginePool:
    """Requests over several engines.

    An engine leaves the pool (quarantine) when it breaks a connection, answers with a server error, or is silent and
    not healthy either; its request goes to another one, at most `_ATTEMPTS` times. A request that the engine
    refuses, or that a healthy engine does not finish in time, is an error: it would fare the same elsewhere.

    Where engines are started again (`replace_s`), requests wait that long for one; a new engine is in quarantine until
    it holds the weights (`replace`, then `release`).
    """

    def __init__(
        self,
        urls: Iterable[str],
        *,
        timeout_s: float,
        replace_s: float | None = None,
        on_quarantine: Callable[[str, str], None] | None = None,
    ) -> None:
        self.engines = {url: PooledEngine(EngineClient(url, timeout_s=timeout_s)) for url in urls}
        self._timeout_s = timeout_s
        self._replace_s = replace_s
        self._on_quarantine = on_quarantine
        self._released = asyncio.Condition()

    def usable(self) -> list[PooledEngine]:
        """Engines that get requests, least busy first; empty only where engines are started again.

        Raises:
            EnginesLostError: there is none; names all and what happened to each.
        """
        usable = [engine for engine in self.engines.values() if engine.quarantined is None]
        if not usable and self._replace_s is None:
            raise self._lost()
        return sorted(usable, key=lambda engine: engine.outstanding)

    async def _one(self) -> PooledEngine:
        """The least busy engine, once there is one."""
        async with self._released:
            try:
                await asyncio.wait_for(self._released.wait_for(self.usable), self._replace_s)
            except TimeoutError:
                raise self._lost() from None
        return self.usable()[0]

    def _lost(self) -> EnginesLostError:
        reasons = {url: engine.quarantined for url, engine in self.engines.items()}
        return EnginesLostError(f"no engine can serve the rollout: {reasons}")

    async def replace(self, url: str, gone: str) -> None:
        """An engine takes the place of another one; it gets requests when it is released."""
        old = self.engines.pop(gone, None)
        self.engines[url] = PooledEngine(EngineClient(url, timeout_s=self._timeout_s), quarantined="waits for weights")
        if old is not None:
            await old.client.close()

    async def release(self, urls: Iterable[str]) -> None:
        """Engines hold the weights that they should."""
        async with self._released:
            for url in urls:
                if url in self.engines:
                    self.engines[url].quarantined = None
            self._released.notify_all()

    def quarantine(self, url: str, reason: str) -> None:
        """Give the engine no further requests."""
        engine = self.engines.get(url)
        if engine is None or engine.quarantined is not None:
            return
        engine.quarantined = reason
        logger.warning("engine %s gets no further requests: %s", url, reason)
        if self._on_quarantine is not None:
            self._on_quarantine(url, reason)

    async def run(
        self,
        request: Callable[[EngineClient], Awaitable[T]],
        *,
        samples: int,
        what: str,
        engine: PooledEngine | None = None,
        on_engine: Callable[[str], None] | None = None,
    ) -> T:
        """The answer to `request`, from `engine` or the least busy one; from another one if that dies.

        Raises:
            EnginesLostError: every attempt lost its engine, or none is left.
            EngineCallError: the request was refused, or is too slow for `--rollout-http-timeout`.
        """
        failures: list[str] = []
        for _ in range(_ATTEMPTS):
            usable = [engine] if engine is not None and engine.quarantined is None else self.usable()
            # Without a pause where one is usable, so that requests that start together spread over the engines.
            chosen = usable[0] if usable else await self._one()
            engine = None
            if on_engine is not None:
                on_engine(chosen.url)
            chosen.outstanding += samples
            try:
                return await request(chosen.client)
            except EngineCallError as error:
                reason = await self._death(chosen, error)
                if reason is None:
                    raise
                self.quarantine(chosen.url, reason)
                failures.append(reason)
            finally:
                chosen.outstanding -= samples
        raise EnginesLostError(f"{what} lost its engine {len(failures)} times: {failures}")

    async def _death(self, engine: PooledEngine, error: EngineCallError) -> str | None:
        """Why the engine is lost, None if it is not."""
        if isinstance(error, EngineUnreachableError):
            return str(error)
        if isinstance(error, EngineRefusedError):
            return str(error) if error.status >= 500 else None
        assert isinstance(error, EngineDeadlineError)
        try:
            await engine.client.health(generate=True, deadline_s=_HEALTH_S)
        except EngineCallError as unhealthy:
            return f"{error}, and {unhealthy}"
        error.add_note("the engine is healthy: raise --rollout-http-timeout or lower --rollout-max-response-len")
        return None

    async def abort(self, rid_prefix: str | None = None) -> None:
        """Abort requests whose id starts with `rid_prefix`, or all, on every usable engine.

        An engine that does not answer is left to the request that waits for it.
        """
        usable = [engine for engine in self.engines.values() if engine.quarantined is None]
        answers = await asyncio.gather(*(engine.client.abort(rid_prefix) for engine in usable), return_exceptions=True)
        for engine, answer in zip(usable, answers, strict=True):
            if isinstance(answer, EngineCallError):
                logger.warning("engine %s did not abort: %s", engine.url, answer)
            elif isinstance(answer, BaseException):
                raise answer

    async def release_memory(self) -> None:
        """Let every usable engine, all idle, give its memory back."""
        await asyncio.gather(*(engine.client.release_memory() for engine in self.usable()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(engine.client.close() for engine in self.engines.values()))
