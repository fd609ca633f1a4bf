"""The engines as the rollout uses them: one for each request, and another one when it dies.

What lives here: which engines may get a request, and what a failure means. What does not: which of them gets it
(`routing`), starting engines, weights (the actor), and when engines come and go (`relax_engine.elastic`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, TypeVar

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import (
    EngineCallError,
    EngineDeadlineError,
    EngineRefusedError,
    EngineUnreachableError,
)
from relax_engine.errors import RelaxError
from relax_engine.rollout.routing import Affinity, LeastLoad, RoutingPolicy
from relax_engine.types import Sample

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS = 4
_HEALTH_S = 20.0
_WAITS = "waits for weights"

Origin = Literal["initial", "ray_native", "external"]
"""Whether an engine was there from the start, was added by this run, or was started elsewhere."""


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
    origin: Origin = "initial"
    reserved: bool = False
    """Whether it gets no requests although it may hold the weights: it is on its way in."""
    draining: bool = False
    """Whether it gets no further requests: it is on its way out."""
    offloaded: bool = False
    """Whether it gave its memory back."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its last request has ended while it drains."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it no longer waits for weights, because it has them or is out of service."""

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.client.url

    @property
    def waits(self) -> bool:
        """Whether weights are all that it lacks."""
        return self.quarantined == _WAITS

    @property
    def usable(self) -> bool:
        """Whether it gets requests."""
        return self.quarantined is None and not self.reserved and not self.draining


def asked_of(samples: Sequence[Sample], announce: Callable[[str], None]) -> Callable[[str], None]:
    """`announce`, and a note on every sample of which engine is asked."""

    def told(url: str) -> None:
        for sample in samples:
            sample.engine = url
        announce(url)

    return told


class EnginePool:
    """Requests over several engines.

    An engine leaves the pool (quarantine) when it breaks a connection, answers with a server error, or is silent and
    not healthy either; its request goes to another one, at most `_ATTEMPTS` times. A request that the engine
    refuses, or that a healthy engine does not finish in time, is an error: it would fare the same elsewhere.

    Where engines are started again (`replace_s`), requests wait that long for one; a new engine is in quarantine until
    it holds the weights (`replace`, then `release`).

    Engines come and go while requests run: `add`, `release` when it holds the weights, `activate`; `drain`, `remove`.
    The requests of one that is removed go to another one, and are no failed attempts.
    """

    def __init__(
        self,
        urls: Iterable[str],
        *,
        timeout_s: float,
        replace_s: float | None = None,
        on_quarantine: Callable[[str, str], None] | None = None,
        policy: RoutingPolicy | None = None,
    ) -> None:
        """`policy` chooses among engines that may get a request; default the least busy one."""
        self.engines = {url: PooledEngine(EngineClient(url, timeout_s=timeout_s)) for url in urls}
        self._timeout_s = timeout_s
        self._replace_s = replace_s
        self._on_quarantine = on_quarantine
        self._policy = policy or LeastLoad()
        self._released = asyncio.Condition()
        self._memory = asyncio.Lock()

    def usable(self) -> list[PooledEngine]:
        """Engines that get requests, least busy first; empty only where engines are started again.

        Raises:
            EnginesLostError: there is none; names all and what happened to each.
        """
        usable = [engine for engine in self.engines.values() if engine.usable]
        if not usable and self._replace_s is None:
            raise self._lost()
        return sorted(usable, key=lambda engine: engine.outstanding)

    @property
    def replaces(self) -> bool:
        """Whether another engine takes the place of one that dies."""
        return self._replace_s is not None

    def receivers(self) -> list[str]:
        """Engines that weights are for: all but those that are out of service."""
        return [url for url, engine in self.engines.items() if engine.quarantined is None or engine.waits]

    async def _usable_soon(self) -> list[PooledEngine]:
        """Engines that get requests, once there is one."""
        try:
            async with asyncio.timeout(self._replace_s), self._released:
                while not (usable := self.usable()):
                    await self._released.wait()
                return usable
        except TimeoutError:
            raise self._lost() from None

    def _lost(self) -> EnginesLostError:
        reasons = {url: engine.quarantined for url, engine in self.engines.items()}
        return EnginesLostError(f"no engine can serve the rollout: {reasons}")

    async def replace(self, url: str, gone: str) -> None:
        """An engine takes the place of another one; it gets requests when it is released."""
        old = self.engines.get(gone)
        new = self._waiting(url, "initial" if old is None else old.origin)
        if old is None:
            self.engines[url] = new
            return
        # In its place, for the order in which engines came.
        self.engines = {e.url: e for e in (new if e is old else e for e in self.engines.values())}
        await old.client.close()

    def _waiting(self, url: str, origin: Origin) -> PooledEngine:
        return PooledEngine(EngineClient(url, timeout_s=self._timeout_s), quarantined=_WAITS, origin=origin)

    def add(self, url: str, origin: Origin) -> None:
        """An engine more; it gets requests when it is released and activated."""
        self.engines[url] = self._waiting(url, origin)
        self.engines[url].reserved = True

    async def release(self, urls: Iterable[str]) -> None:
        """Engines hold the weights that they should."""
        async with self._released:
            for url in urls:
                if url in self.engines:
                    self.engines[url].quarantined = None
                    self.engines[url].settled.set()
            self._released.notify_all()

    async def arrival(self, urls: Iterable[str]) -> None:
        """Return when each of the engines has been released, put in quarantine, or removed."""
        for engine in [self.engines[url] for url in urls if url in self.engines]:
            await engine.settled.wait()

    async def activate(self, urls: Iterable[str]) -> None:
        """Give engines that were added their share of the requests."""
        async with self._released:
            for url in urls:
                if url in self.engines:
                    self.engines[url].reserved = False
            self._released.notify_all()

    def drain(self, url: str) -> None:
        """Give an engine that is to leave no further requests; `idle` of it says when the last one has ended."""
        engine = self.engines[url]
        engine.draining = True
        if engine.outstanding == 0:
            engine.idle.set()

    def keep(self, url: str) -> None:
        """It stays after all."""
        if url in self.engines:
            self.engines[url].draining = False
            self.engines[url].idle.clear()

    async def remove(self, url: str) -> None:
        """Forget an engine; the requests that it has go to another one."""
        engine = self.engines.pop(url, None)
        if engine is None:
            return
        engine.idle.set()
        engine.settled.set()
        await engine.client.close()
        async with self._released:
            self._released.notify_all()

    def quarantine(self, url: str, reason: str) -> None:
        """Give the engine no further requests."""
        engine = self.engines.get(url)
        if engine is None or not (engine.quarantined is None or engine.waits):
            return
        engine.quarantined = reason
        engine.settled.set()
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
        affinity: Affinity | None = None,
    ) -> T:
        """The answer to `request`, from `engine` or the one that the policy chooses; from another one if that dies.

        Raises:
            EnginesLostError: every attempt lost its engine, or none is left.
            EngineCallError: the request was refused, or is too slow for `--rollout-http-timeout`.
        """
        failures: list[str] = []
        while len(failures) < _ATTEMPTS:
            usable = [engine] if engine is not None and engine.usable else self.usable()
            # Without a pause where one is usable, so that requests that start together spread over the engines.
            usable = usable or await self._usable_soon()
            chosen = self._policy.choose(usable, samples, affinity or Affinity())
            engine = None
            if on_engine is not None:
                on_engine(chosen.url)
            chosen.outstanding += samples
            try:
                return await request(chosen.client)
            except EngineCallError as error:
                if self.engines.get(chosen.url) is not chosen:
                    continue  # it was removed meanwhile
                reason = await self._death(chosen, error)
                if reason is None:
                    raise
                self.quarantine(chosen.url, reason)
                failures.append(reason)
            finally:
                chosen.outstanding -= samples
                if chosen.draining and chosen.outstanding == 0:
                    chosen.idle.set()
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

    async def abort(self, rid_prefix: str | None = None, *, only: str | None = None) -> None:
        """Abort requests whose id starts with `rid_prefix`, or all, on every engine in service, or on `only` one.

        An engine that does not answer is left to the request that waits for it.
        """
        serving = [e for url, e in self.engines.items() if e.quarantined is None and only in (None, url)]
        answers = await asyncio.gather(*(engine.client.abort(rid_prefix) for engine in serving), return_exceptions=True)
        for engine, answer in zip(serving, answers, strict=True):
            if isinstance(answer, EngineCallError):
                logger.warning("engine %s did not abort: %s", engine.url, answer)
            elif isinstance(answer, BaseException):
                raise answer

    async def answered(self, rid_prefix: str, url: str) -> None:
        """Return when the engine has answered all requests whose id starts with `rid_prefix`; has no deadline."""
        if url in self.engines:
            await self.engines[url].client.answered(rid_prefix)

    async def release_memory(self) -> None:
        """Let every usable engine, all idle, give its memory back."""
        async with self._memory:
            engines = self.usable()
            await asyncio.gather(*(engine.client.release_memory() for engine in engines))
            for engine in engines:
                engine.offloaded = True

    async def resume_memory(self) -> None:
        """Let those that gave their memory back, and only they, take it again; one that cannot is out of service."""
        async with self._memory:
            engines = [engine for engine in self.engines.values() if engine.offloaded]
            answers = await asyncio.gather(*(e.client.resume_memory() for e in engines), return_exceptions=True)
            for engine, answer in zip(engines, answers, strict=True):
                engine.offloaded = False
                if isinstance(answer, EngineCallError):
                    self.quarantine(engine.url, f"it did not take its memory again: {answer}")
                elif isinstance(answer, BaseException):
                    raise answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(engine.client.close() for engine in self.engines.values()))
