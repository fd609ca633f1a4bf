"""What is under way in a run, for whoever looks at it: asked of the roles every two seconds, beside everything else."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from relax_engine.core.service import Service
from relax_engine.stream.client import StreamClient
from relax_engine.stream.errors import StreamError

logger = logging.getLogger(__name__)

_EVERY_S = 2.0
_ANSWER_S = 5.0
_ROLE_FACTS = ("step", "seconds_since_progress", "waiting", "restarts")


class Snapshots:
    """Takes a snapshot in a task of its own, at most one at a time; a role that does not answer is left out of it."""

    def __init__(
        self,
        services: Mapping[str, Service],
        stream: StreamClient,
        num_steps: int,
        show: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """`show` is given each snapshot, and returns at once."""
        self._services, self._stream, self._num_steps, self._show = services, stream, num_steps, show
        self._task: asyncio.Task[None] | None = None
        self._taken = 0.0

    def maybe_take(self) -> None:
        """Begin one if it is time and none is under way."""
        if time.monotonic() - self._taken >= _EVERY_S and (self._task is None or self._task.done()):
            self._taken = time.monotonic()
            self._task = asyncio.create_task(self._take(), name="snapshot")

    def close(self) -> None:
        """Give up the one under way."""
        if self._task is not None:
            self._task.cancel()

    async def _take(self) -> None:
        try:
            names = list(self._services)
            answers = await asyncio.gather(
                asyncio.to_thread(self._stream.stats),
                self._engines(),
                *(self._services[name].call("health", deadline_s=_ANSWER_S) for name in names),
                return_exceptions=True,
            )
            stats, engines, *healths = answers
            roles = {
                name: {fact: health[fact] for fact in _ROLE_FACTS}
                for name, health in zip(names, healths, strict=True)
                if isinstance(health, Mapping)
            }
            self._show(
                {
                    "status": "running",
                    "num_steps": self._num_steps,
                    "stream": {} if isinstance(stats, BaseException) else stats.metrics(""),
                    "engines": [] if isinstance(engines, BaseException) else engines,
                    "roles": roles,
                }
            )
        except StreamError as error:
            logger.debug("no snapshot: %s", error)

    async def _engines(self) -> Any:
        if "rollout" not in self._services:
            return []
        return await self._services["rollout"].call("engine_states", deadline_s=_ANSWER_S)
