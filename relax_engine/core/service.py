"""One role of a run from the controller's side: its Serve application and its running loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ray import serve

from relax_engine.components.role import RoleContext
from relax_engine.core.failure import RoleError
from relax_engine.core.registry import deployment


class Service:
    """A deployed role. Life: `target` -> deployed -> `setup` -> `start` -> done -> `close`."""

    def __init__(self, name: str, context: RoleContext, *, deadline_s: float) -> None:
        self.name = name
        self.deadline_s = deadline_s
        self._context = context
        self._task: asyncio.Task[Any] | None = None

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
            .bind(self._context)
        )
        return serve.RunTarget(application, name=self.name, route_prefix=f"/{self.name}")

    async def call(self, method: str, *args: Any) -> Any:
        """Call a control method of the role under the deadline.

        Raises:
            RoleError: it failed, or did not answer.
        """
        handle = serve.get_app_handle(self.name)
        try:
            return await asyncio.wait_for(_result(getattr(handle, method).remote(*args)), self.deadline_s)
        except TimeoutError as error:
            raise RoleError(f"role {self.name!r} did not answer {method}() within {self.deadline_s:g} s") from error

    def start(self, *args: Any) -> asyncio.Task[Any]:
        """Start the role's loop; the task ends with it."""
        handle = serve.get_app_handle(self.name)
        self._task = asyncio.create_task(_result(handle.run.remote(*args)), name=self.name)
        return self._task

    async def events(self) -> Sequence[dict[str, Any]]:
        """What happened in the role since the last call."""
        events: Sequence[dict[str, Any]] = await self.call("drain_events")
        return events


async def _result(response: Any) -> Any:
    return await response
