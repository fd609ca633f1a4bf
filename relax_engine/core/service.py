"""One role of a run from the controller's side: its Serve application and its running loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError

from relax_engine.components.role import RoleContext
from relax_engine.core.deploy import delete, deploy
from relax_engine.core.failure import RoleError
from relax_engine.core.registry import deployment

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0


class Service:
    """A deployed role.

    Life: `target` -> deployed -> `setup` -> `run` -> `close`. From a failed `run` over `redeploy` to the next `run`.
    """

    def __init__(self, name: str, context: RoleContext, *, deadline_s: float) -> None:
        self.name = name
        self.deadline_s = deadline_s
        self.context = context
        self._died = False

    def target(self) -> serve.RunTarget:
        """What Serve is to run: the role under its name, at `/<name>`."""
        application = (
            deployment(self.name)
            .options(
                name=self.name,
                num_replicas=1,
                # The role's work happens in its rank and engine processes, which hold the devices.
                ray_actor_options={"num_cpus": 0},
                max_ongoing_requests=1000,
                health_check_period_s=30,
                health_check_timeout_s=self.deadline_s,
                graceful_shutdown_timeout_s=2,
            )
            .bind(self.context)
        )
        return serve.RunTarget(application, name=self.name, route_prefix=f"/{self.name}")

    async def call(self, method: str, *args: Any, deadline_s: float | None = None) -> Any:
        """Call a control method of the role under the deadline.

        Raises:
            RoleError: it failed, or did not answer.
        """
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        handle = serve.get_app_handle(self.name)
        try:
            return await asyncio.wait_for(_result(getattr(handle, method).remote(*args)), deadline_s)
        except TimeoutError as error:
            message = f"role {self.name!r} did not answer {method}() within {deadline_s:g} s"
            raise RoleError(message, interrupted=True) from error

    async def run(self, *args: Any) -> dict[str, Any]:
        """The role's loop, to its end; returns its outcome."""
        self._died = False
        try:
            outcome: dict[str, Any] = await _result(serve.get_app_handle(self.name).run.remote(*args))
        except RayActorError as error:
            # Raised by the role, it would be a task's error, and the process that died another one.
            self._died = not isinstance(error, RayTaskError)
            raise
        return outcome

    async def redeploy(self, **changes: Any) -> None:
        """Start the role anew with changes to its context, once what is left of the old one has ended.

        What a dead process owned ends with it. Asked to close, the one that Serve starts in its place would answer.
        """
        if not self._died:
            with contextlib.suppress(Exception):
                await self.call("close", deadline_s=_CLOSE_S)
        self.context = replace(self.context, restarts=self.context.restarts + 1, **changes)
        self._died = False
        await delete([self.name], self.deadline_s)
        await deploy([self.target()], self.deadline_s)
        await self.call("setup")

    async def events(self, deadline_s: float) -> Sequence[dict[str, Any]]:
        """What happened in the role since the last call."""
        events: Sequence[dict[str, Any]] = await self.call("drain_events", deadline_s=deadline_s)
        return events


async def _result(response: Any) -> Any:
    return await response
