"""The engines of the rollout role: their processes, who gets requests, and scaling, wired together.

What lives here: what the death, the arrival or the end of an engine means for the others. What does not: processes
(`engine_group.py`), requests (`rollout.pool`), and scale requests (`relax_engine.elastic`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from relax_engine.components.engine_group import EngineEvents, EngineGroup, unhealthy
from relax_engine.components.engine_host import EngineEnd
from relax_engine.config import RunConfig
from relax_engine.core.placement import Slot
from relax_engine.elastic.api import Elasticity
from relax_engine.elastic.fence import WeightFence
from relax_engine.elastic.fleet import EngineFleet
from relax_engine.elastic.scaler import Scaler
from relax_engine.elastic.schemas import DEFAULT_MODEL
from relax_engine.elastic.settings import ElasticSettings, refusal
from relax_engine.elastic.urls import allowed_networks, check_engine_url
from relax_engine.rollout.pool import EnginePool
from relax_engine.rollout.routing import routing_policy

logger = logging.getLogger(__name__)

Emit = Callable[..., None]


class RolloutEngines:
    """All engines that generate for the run.

    A dead engine gets no further requests. What then becomes of it:

    | engine | with --use-fault-tolerance | without |
    |---|---|---|
    | initial | started again in its place | stays dead |
    | added by this run | started again in its place | leaves |
    | added, and ended by SIGTERM | leaves, as a scale-in | leaves, as a scale-in |
    | external | leaves | leaves |

    An engine whose start has not come to its end is the scale request's own business.
    """

    def __init__(
        self, config: RunConfig, slots: Sequence[Slot], emit: Emit, *, group: EngineGroup | None = None
    ) -> None:
        """`group` are the engines of another model than the one that is trained."""
        self.config, self.args = config, config.flat
        self.tolerant: bool = self.args.use_fault_tolerance
        self.engine_group = group or EngineGroup(config, () if self.args.debug_train_only else slots)
        self.fence = WeightFence()
        self.version = 0 if self.args.debug_rollout_only else -1
        self.refusal = refusal(config)
        self._emit = emit
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, cut: Callable[[str], Awaitable[None]]) -> None:
        """Start the initial engines; `cut` cuts off what another engine may continue."""
        args = self.args
        self.pool = EnginePool(
            await self.engine_group.start(args.rollout_engine_init_timeout),
            timeout_s=args.rollout_http_timeout,
            replace_s=args.wait_timeout if self.tolerant else None,
            on_quarantine=self._quarantined,
            policy=routing_policy(args.sglang_router_policy),
        )
        self.engine_group.keep_running(
            EngineEvents(self.pool.quarantine, self._replaced, self._left), check_health=args.use_health_check
        )
        self.fleet = EngineFleet(self.pool, self, self._emit, self.fence, cut=cut, allow=self._allow)
        settings = ElasticSettings.from_config(self.config)
        self.scaler = Scaler(DEFAULT_MODEL, self.fleet, settings, self._emit, version=lambda: self.version)

    @property
    def elasticity(self) -> Elasticity:
        """What the scaling API needs."""
        return Elasticity({DEFAULT_MODEL: self.scaler}, self.refusal)

    def processes(self) -> dict[str, int]:
        """Process ids of the engines of this run."""
        return self.engine_group.processes

    # -- weights -----------------------------------------------------------------------------------

    def weights_begin(self) -> list[str]:
        """The actor is about to send weights; returns to whom. None of them is taken away until `weights_end`."""
        self.fence.close()
        return self.pool.receivers()

    async def weights_end(self, version: int, quarantined: Mapping[str, str], committed: Sequence[str]) -> None:
        """The committed engines hold weights of `version`; the quarantined ones get no more traffic."""
        self.version = version
        for url, reason in quarantined.items():
            self.pool.quarantine(url, reason)
        await self.pool.release(committed)
        self.fence.open()

    # -- engines that die --------------------------------------------------------------------------

    def _quarantined(self, url: str, reason: str) -> None:
        engine = self.pool.engines[url]
        self._emit("engine_quarantined", engine=url, reason=reason)
        if engine.reserved:
            return
        if engine.origin == "external":
            self._background(self.fleet.leave(url))
        elif self.tolerant or engine.origin == "ray_native":
            self.engine_group.kill(url)

    async def _replaced(self, url: str, gone: str) -> None:
        if gone not in self.pool.engines:
            return  # it was removed while it was being started again, and ends with that
        await self.pool.replace(url, gone)
        self._emit("engine_started", engine=url, replaces=gone)

    def _left(self, url: str, end: EngineEnd) -> None:
        """An added engine is dead for good."""
        if url not in self.pool.engines:
            return
        if end.evicted:
            self.scaler.evicted(url)
        else:
            self._background(self._forget(url))

    async def _forget(self, url: str) -> None:
        await self.fleet.leave(url)
        await self.engine_group.end(url, self.args.scale_in_shutdown_timeout)

    # -- the launcher of the fleet -----------------------------------------------------------------

    async def launch(self, timeout_s: float) -> str:
        """See `Launcher`."""
        return await self.engine_group.launch(timeout_s)

    async def end(self, url: str, timeout_s: float) -> None:
        """See `Launcher`."""
        await self.engine_group.end(url, timeout_s)

    def watch(self, url: str) -> None:
        """See `Launcher`."""
        engine = self.pool.engines.get(url)
        if engine is None:
            return
        if engine.origin != "external":
            self.engine_group.attend(url)
        elif self.args.use_health_check:
            self._background(self._quarantine_when_unhealthy(url))

    def details(self, url: str) -> Mapping[str, Any]:
        """See `Launcher`."""
        return self.engine_group.details(url)

    async def _quarantine_when_unhealthy(self, url: str) -> None:
        self.pool.quarantine(url, await unhealthy(url, self.args))

    def _allow(self, url: str) -> None:
        check_engine_url(url, allowed_networks(self.args))

    # -- the end -----------------------------------------------------------------------------------

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop scaling, and end all engines of this run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "pool"):
            await self.scaler.close()
            await self.pool.close()
        await self.engine_group.close()
