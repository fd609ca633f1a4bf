"""Starting the engines of a run, each on its device, and starting them again when they die.

What lives here: the engines of this run, initial ones and those that are added. What does not: their processes
(`engine_host.py`), which requests they get (`rollout.pool`), and when they come and go (`relax_engine.elastic`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.starting import EngineStart
from relax_engine.backends.engines.types import EngineCallError, EngineLaunchError, EngineUnreachableError
from relax_engine.components.engine_host import EngineEnd, EngineHost
from relax_engine.config import RunConfig
from relax_engine.config.flat import FlatView
from relax_engine.core.cluster import ClusterError
from relax_engine.core.placement import Slot, place_more
from relax_engine.elastic.failures import EngineJoinError, FailureCategory

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
_ATTEMPTS = 3


@dataclass(slots=True)
class _Engine:
    """One engine and where it lives. `added`: during the run, with a placement group of its own."""

    slot: Slot
    host: Any
    added: bool = False
    url: str = ""
    pid: int = 0
    node_id: str = ""
    alive: bool = False
    watch: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class EngineEvents:
    """Who hears what."""

    lost: Callable[[str, str], None]
    """`(url, reason)`: an engine is dead."""
    started: Callable[[str, str], Awaitable[None]]
    """`(url, gone)`: an engine, without weights, takes the place of another one."""
    left: Callable[[str, EngineEnd], None]
    """An engine that was added during the run is dead, and is not started again."""


class EngineGroup:
    """The engines that a role owns: of the model that is trained, or of another one (`model_path`).

    `keep_running` notices an engine's death when its process or its host's ends, and with `check_health` also when it
    fails its health checks. The engine is started again in the same place, under a new URL, and holds the initial
    weights. An engine that was added by `launch` is not where it was told to end by its machine.
    """

    def __init__(
        self,
        config: RunConfig,
        slots: Sequence[Slot],
        model_path: str | None = None,
        *,
        context_length: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin to start one engine on each slot.

        Args:
            config: The run's.
            slots: Devices.
            model_path: The model; default the one that is trained, whose newest published weights are then served.
            context_length: Longest prompt and response together; default the rollout's.
            extra_args: Further server arguments, over those of `--sglang-NAME`.
        """
        self.flat = config.flat
        self._start = EngineStart.from_config(
            self.flat, model_path, context_length=context_length, extra_args=extra_args or {}
        )
        self._slots = slots
        self._engines = [_Engine(slot, self._host(slot)) for slot in slots]
        self._events: EngineEvents | None = None
        self._check_health = False

    @property
    def urls(self) -> list[str]:
        """Where the engines answer."""
        return [engine.url for engine in self._engines]

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of the engines."""
        return {f"engine {number}": engine.pid for number, engine in enumerate(self._engines)}

    def _host(self, slot: Slot) -> Any:
        return ray.remote(EngineHost).options(**slot.actor_options(), max_concurrency=4).remote(self._start)

    def _find(self, url: str) -> _Engine | None:
        return next((engine for engine in self._engines if engine.url == url), None)

    async def start(self, timeout_s: float) -> list[str]:
        """URLs of all engines, once each answers; the first failure is raised with the engine's log.

        An engine that dies meanwhile is started again where failures are tolerated, with another `timeout_s`.
        """
        await asyncio.gather(*(self._first_start(engine, timeout_s) for engine in self._engines))
        return self.urls

    async def _first_start(self, engine: _Engine, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._ready(engine), timeout_s)
        except (RayActorError, TimeoutError) as error:
            if not self.flat.use_fault_tolerance:
                raise
            logger.warning("an engine did not start: %s", error)
            await self._start_again(engine)

    async def _ready(self, engine: _Engine) -> None:
        engine.url, engine.pid, engine.node_id = await engine.host.facts.remote()
        engine.alive = True

    # -- keeping them running ----------------------------------------------------------------------

    def keep_running(self, events: EngineEvents, *, check_health: bool) -> None:
        """Notice deaths from now on; of the initial engines only where they are started again."""
        self._events, self._check_health = events, check_health
        if self.flat.use_fault_tolerance:
            for engine in self._engines:
                self.attend(engine.url)

    def attend(self, url: str) -> None:
        """Notice the death of the engine at `url`; one that runs elsewhere only by its health checks."""
        assert self._events is not None
        engine = self._find(url)
        if engine is not None:
            engine.watch = asyncio.create_task(self._keep(engine, self._events), name=f"engine {url}")
            engine.watch.add_done_callback(_report_end)

    def kill(self, url: str) -> None:
        """End the engine at `url`, if it lives; whether it is started again is decided when it has ended."""
        engine = self._find(url)
        if engine is not None and engine.alive:
            engine.host.kill.remote()

    async def _keep(self, engine: _Engine, events: EngineEvents) -> None:
        while True:
            end = await self._end_of(engine)
            lost, engine.alive = engine.url, False
            events.lost(lost, end.reason)
            if engine.added and (end.evicted or not self.flat.use_fault_tolerance):
                return events.left(lost, end)
            try:
                await self._start_again(engine)
            except EngineLaunchError as error:
                if not engine.added:
                    raise
                engine.url = lost
                return events.left(lost, EngineEnd(str(error)))
            await events.started(engine.url, lost)

    async def _end_of(self, engine: _Engine) -> EngineEnd:
        """How the engine ended, as soon as it is no longer usable."""
        signs = [asyncio.ensure_future(_end_of_process(engine.host))]
        if self._check_health:
            signs.append(asyncio.ensure_future(_end_by_health(engine.url, self.flat)))
        try:
            done, _ = await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for sign in signs:
                sign.cancel()

    async def _start_again(self, engine: _Engine) -> None:
        """A new process on the same device.

        Raises:
            EngineLaunchError: it did not start, several times.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            ray.kill(engine.host)
            engine.host = self._host(engine.slot)
            try:
                await asyncio.wait_for(self._ready(engine), self.flat.rollout_engine_init_timeout)
                return
            except (RayActorError, EngineLaunchError, TimeoutError) as error:
                logger.warning("engine did not start again (attempt %d of %d): %s", attempt, _ATTEMPTS, error)
                reason = error
        raise EngineLaunchError(f"an engine did not start again in {_ATTEMPTS} attempts: {reason}")

    # -- more and fewer ----------------------------------------------------------------------------

    async def launch(self, timeout_s: float) -> str:
        """URL of one more engine, on a device of its own.

        Raises:
            EngineJoinError: the cluster has no room for it in time, or it does not start.
        """
        started = asyncio.get_running_loop().time()
        try:
            slot = await place_more(self._slots[0], timeout_s)
        except ClusterError as error:
            raise EngineJoinError(FailureCategory.PROVISION_TIMEOUT, str(error)) from error
        engine = _Engine(slot, self._host(slot), added=True)
        left = timeout_s - (asyncio.get_running_loop().time() - started)
        try:
            await asyncio.wait_for(self._ready(engine), left)
        except BaseException as error:
            _give_back(engine)
            if isinstance(error, TimeoutError):
                message = f"an engine was not ready within {timeout_s:g} s"
                raise EngineJoinError(FailureCategory.ENGINE_INIT_FAILED, message) from error
            if isinstance(error, RayActorError | EngineLaunchError):
                raise EngineJoinError(FailureCategory.ENGINE_INIT_FAILED, str(error)) from error
            raise
        self._engines.append(engine)
        return engine.url

    async def end(self, url: str, timeout_s: float) -> None:
        """End the engine at `url`, if it is of this group, and give its device back."""
        engine = self._find(url)
        if engine is None:
            return
        if engine.watch is not None:
            engine.watch.cancel()
        self._engines.remove(engine)
        try:
            await asyncio.wait_for(engine.host.close.remote(), timeout_s)
        except (RayActorError, TimeoutError) as error:
            logger.warning("engine %s is killed: %s", url, error or f"it did not end within {timeout_s:g} s")
        _give_back(engine)

    def details(self, url: str) -> dict[str, Any]:
        """`pid` and `node_id` of the engine at `url`, if it is of this group."""
        engine = self._find(url)
        return {} if engine is None else {"pid": engine.pid, "node_id": engine.node_id}

    async def close(self) -> None:
        """End all engines."""
        for engine in self._engines:
            if engine.watch is not None:
                engine.watch.cancel()
        hosts = [engine.host for engine in self._engines]
        if hosts:
            await asyncio.wait([asyncio.ensure_future(host.close.remote()) for host in hosts], timeout=_CLOSE_S)
        for engine in self._engines:
            ray.kill(engine.host)
            if engine.added:
                engine.slot.release()


def _give_back(engine: _Engine) -> None:
    ray.kill(engine.host)
    engine.slot.release()


def _report_end(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and watch.exception() is not None:
        logger.error("%s is given up: %s", watch.get_name(), watch.exception())


async def _end_of_process(host: Any) -> EngineEnd:
    try:
        end: EngineEnd = await host.wait.remote()
    except RayActorError as error:
        return EngineEnd(f"the process that started it is gone: {error}")
    return end


async def _end_by_health(url: str, flat: FlatView) -> EngineEnd:
    return EngineEnd(await unhealthy(url, flat))


async def unhealthy(url: str, flat: FlatView) -> str:
    """Return why the engine at `url` is unhealthy: nobody answers there, or it failed too many checks in a row."""
    failures = 0
    await asyncio.sleep(flat.rollout_health_check_first_wait)
    while True:
        await asyncio.sleep(flat.rollout_health_check_interval)
        try:
            async with EngineClient(url, timeout_s=flat.rollout_health_check_timeout) as client:
                await client.health(deadline_s=flat.rollout_health_check_timeout)
            failures = 0
        except EngineUnreachableError as error:
            return str(error)  # after the client's own retries: dead, not slow
        except EngineCallError as error:
            failures += 1
            logger.warning("engine %s failed health check %d: %s", url, failures, error)
            if failures >= flat.rollout_health_check_max_consecutive_failures:
                return f"{failures} health checks failed in a row, the last with: {error}"
