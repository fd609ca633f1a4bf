"""Starting the engines of a run, each on its device, and starting them again when they die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from relax_engine.access.policy import engine_key
from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineCallError, EngineLaunchError
from relax_engine.config import RunConfig
from relax_engine.core.placement import Slot

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
_ATTEMPTS = 3


class EngineHost:
    """A Ray actor that holds one engine process on the node where the placement put it."""

    def __init__(self, options: dict[str, Any]) -> None:
        from relax_engine.backends.engines.launch import launch_engine

        self._engine = launch_engine(host=ray.util.get_node_ip_address(), **options)

    def facts(self) -> tuple[str, int]:
        """Where the engine answers, and its process id."""
        return self._engine.url, self._engine.pid

    def wait(self) -> str:
        """Return when the engine's process has ended: how, and the end of its log."""
        status = self._engine.process.wait()
        return f"its process ended with status {status}:\n{self._engine.log_tail()}"

    def close(self) -> None:
        """End the engine process."""
        self._engine.close()


@dataclass(slots=True)
class _Engine:
    """One engine and where it lives."""

    slot: Slot
    host: Any
    url: str = ""
    pid: int = 0
    alive: bool = False


class EngineGroup:
    """The engines that a role owns: of the model that is trained, or of another one (`model_path`).

    `watch` notices an engine's death when its process or its host's ends, and with `check_health` also when it fails
    its health checks. The engine is started again in the same place, under a new URL, and holds the initial weights.
    """

    def __init__(self, config: RunConfig, slots: Sequence[Slot], model_path: str | None = None) -> None:
        self.flat = config.flat
        flat = self.flat
        self._options = {
            "model_path": model_path or flat.hf_checkpoint,
            "max_running_requests": flat.sglang_server_concurrency,
            "context_length": flat.rollout_max_context_len,
            "random_seed": flat.rollout_seed,
            "timeout_s": flat.rollout_engine_init_timeout,
            "api_key": engine_key(),
            "extra_args": flat.sglang_args,
            "weight_store": flat.weight_sync_url if flat.weight_sync_transport == "object_store" else None,
        }
        self._engines = [_Engine(slot, self._host(slot)) for slot in slots]
        self._watching: list[asyncio.Task[None]] = []

    @property
    def urls(self) -> list[str]:
        """Where the engines answer."""
        return [engine.url for engine in self._engines]

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of the engines."""
        return {f"engine {number}": engine.pid for number, engine in enumerate(self._engines)}

    def _host(self, slot: Slot) -> Any:
        return ray.remote(EngineHost).options(**slot.actor_options(), max_concurrency=3).remote(self._options)

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
        engine.url, engine.pid = await engine.host.facts.remote()
        engine.alive = True

    def watch(
        self,
        on_lost: Callable[[str, str], None],
        on_started: Callable[[str, str], Awaitable[None]],
        *,
        check_health: bool,
    ) -> None:
        """Keep all engines running. `on_lost(url, reason)`, then `on_started(new url, old url)`."""
        self._watching = [
            asyncio.create_task(self._keep(engine, on_lost, on_started, check_health), name=f"engine {engine.url}")
            for engine in self._engines
        ]
        for task in self._watching:
            task.add_done_callback(_report_end)

    def restart(self, url: str) -> None:
        """End the engine at `url`, if it lives; the watch starts it again."""
        for engine in self._engines:
            if engine.url == url and engine.alive:
                ray.kill(engine.host)

    async def _keep(
        self,
        engine: _Engine,
        on_lost: Callable[[str, str], None],
        on_started: Callable[[str, str], Awaitable[None]],
        check_health: bool,
    ) -> None:
        while True:
            reason = await self._end_of(engine, check_health)
            lost, engine.alive = engine.url, False
            on_lost(lost, reason)
            await self._start_again(engine)
            await on_started(engine.url, lost)

    async def _end_of(self, engine: _Engine, check_health: bool) -> str:
        """Why the engine is no longer usable, as soon as it is not."""
        ended = asyncio.ensure_future(_end_of_process(engine.host))
        signs = [ended, asyncio.ensure_future(self._unhealthy(engine))] if check_health else [ended]
        try:
            done, _ = await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for sign in signs:
                sign.cancel()

    async def _unhealthy(self, engine: _Engine) -> str:
        """Return when the engine has failed too many health checks in a row."""
        flat = self.flat
        failures = 0
        await asyncio.sleep(flat.rollout_health_check_first_wait)
        while True:
            await asyncio.sleep(flat.rollout_health_check_interval)
            try:
                async with EngineClient(engine.url, timeout_s=flat.rollout_health_check_timeout) as client:
                    await client.health(deadline_s=flat.rollout_health_check_timeout)
                failures = 0
            except EngineCallError as error:
                failures += 1
                logger.warning("engine %s failed health check %d: %s", engine.url, failures, error)
                if failures >= flat.rollout_health_check_max_consecutive_failures:
                    return f"{failures} health checks failed in a row, the last with: {error}"

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

    async def close(self) -> None:
        """End all engines."""
        for task in self._watching:
            task.cancel()
        hosts = [engine.host for engine in self._engines]
        if hosts:
            await asyncio.wait([asyncio.ensure_future(host.close.remote()) for host in hosts], timeout=_CLOSE_S)
        for host in hosts:
            ray.kill(host)


def _report_end(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and watch.exception() is not None:
        logger.error("%s is given up: %s", watch.get_name(), watch.exception())


async def _end_of_process(host: Any) -> str:
    try:
        reason: str = await host.wait.remote()
    except RayActorError as error:
        return f"the process that started it is gone: {error}"
    return reason
