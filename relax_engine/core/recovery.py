"""Keeping the roles' loops running: which failure calls for what.

Two tiers. A role that was interrupted is started again in place, and takes from the stream what is left for it to
do. When that does not help, or its state is gone, the failure ends the controller, and `train` starts the run
again from its last checkpoint. A failure that would only repeat itself ends the run at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from relax_engine.config import RunConfig
from relax_engine.config.critic import uses_critic
from relax_engine.core.failure import RoleError, role_failure
from relax_engine.core.resume import ResumePoint
from relax_engine.core.service import Service
from relax_engine.core.watch import Watch

logger = logging.getLogger(__name__)

T = TypeVar("T")

Tell = Callable[[Mapping[str, Any]], None]
"""Hears of an event, and returns at once."""

_RESTARTS_WITHOUT_A_STEP = 3


class RunInterruptedError(RoleError):
    """A restart in place cannot restore the role; the run may be started again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, interrupted=True)


def lost_with(role: str, config: RunConfig) -> str | None:
    """What a role holds that neither the stream nor a checkpoint can give back, so that the run must start again."""
    flat = config.flat
    if role in ("actor", "actor_fwd") and flat.keep_old_actor:
        return "the copies of older weights (--keep-old-actor)"
    if role in ("actor", "critic") and uses_critic(config):
        return "a step that the actor and the critic take together"
    if role == "rollout" and flat.rollout_function_path is not None:
        return "what the function of --rollout-function-path had under way"
    if role == "rollout" and flat.load_debug_rollout_data is not None:
        return "the place in the recorded rollouts (--load-debug-rollout-data)"
    if role == "actor" and flat.save is None:
        return "the trained weights, of which there is no checkpoint (--save)"
    return None


def until_done(
    run_from: Callable[[ResumePoint], T],
    point: ResumePoint,
    newest: Callable[[], ResumePoint | None],
    restarts: int,
    tell: Tell,
) -> T:
    """The result of a run that is started again from its newest checkpoint each time that it is interrupted.

    Gives up after `restarts` of them in a row without a new checkpoint. `tell` hears of each.

    Raises:
        RoleError: the failure that was one too many, or that would repeat itself.
    """
    left = restarts
    while True:
        try:
            return run_from(point)
        except RoleError as error:
            found = newest() or point
            if found.iteration > point.iteration:
                left = restarts
            if not error.interrupted or left == 0:
                raise
            left, point = left - 1, found
            logger.warning("starting the run again at step %d (%s): %s", point.iteration, point.directory, error)
            tell({"kind": "run_restarted", "role": "controller", "step": point.iteration, "reason": str(error)})


class Keeper:
    """Runs roles to their end, starting them again when they are interrupted.

    A role is started again at most three times while no step is finished; a finished step makes the count zero, so
    a long run survives any number of failures that it outruns.

    `restart(name)` makes the role ready to run again; `arguments(name)` is what its loop is started with. `tell` hears
    of each restart.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        watch: Watch,
        run_dir: Path,
        *,
        tolerant: bool,
        restart: Callable[[str], Awaitable[None]],
        arguments: Callable[[str], tuple[Any, ...]],
        tell: Tell,
    ) -> None:
        self.services = services
        self.watch = watch
        self.run_dir = run_dir
        self.tolerant = tolerant
        self.restarting: set[str] = set()
        self._restart = restart
        self._arguments = arguments
        self._tell = tell
        self._restarts: dict[str, int] = {}
        self._condemned: dict[str, asyncio.Future[None]] = {}

    async def keep(self, name: str) -> dict[str, Any]:
        """The outcome of the role's loop.

        Raises:
            RoleError: it failed, and was not or could not be started again.
        """
        again = False
        while True:
            try:
                if again:
                    self.restarting.add(name)
                    await self._restart(name)
                    self.restarting.discard(name)
                return await self._run(name)
            except Exception as error:  # noqa: BLE001 - judged, and raised again unless the role is started again
                self._judge(name, error)
                again = True

    def condemn(self, name: str, error: RoleError) -> None:
        """Take a running role for failed, whatever its loop does."""
        verdict = self._condemned.get(name)
        if verdict is not None and not verdict.done():
            verdict.set_exception(error)

    def step_finished(self) -> None:
        """The run makes progress: restarts are counted anew."""
        self._restarts.clear()

    async def _run(self, name: str) -> dict[str, Any]:
        loop = asyncio.create_task(self.services[name].run(*self._arguments(name)), name=name)
        verdict = self._condemned[name] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({loop, verdict}, return_when=asyncio.FIRST_COMPLETED)
            if verdict.done():
                verdict.result()
            return loop.result()
        finally:
            self.watch.forget(name)
            verdict.cancel()
            loop.cancel()

    def _judge(self, name: str, error: Exception) -> None:
        """Return when the role is to be started again, raise the failure otherwise."""
        failure = role_failure(name, error, self.run_dir)
        if not self.tolerant or not failure.interrupted or isinstance(failure, RunInterruptedError):
            raise failure
        self._restarts[name] = self._restarts.get(name, 0) + 1
        if self._restarts[name] > _RESTARTS_WITHOUT_A_STEP:
            raise failure
        logger.warning("starting role %s again: %s", name, failure)
        self._tell({"kind": "role_restarted", "role": name, "reason": str(failure)})
