"""From what Ray raises to what a person needs: which role failed, why, if trying again may help, where details are."""

from __future__ import annotations

import re
from pathlib import Path

from ray.exceptions import ObjectLostError, RayActorError, RayTaskError, WorkerCrashedError
from ray.serve.exceptions import RayServeException

from relax_engine.backends.engines.types import EngineDeadlineError, EngineLaunchError, EngineUnreachableError
from relax_engine.components.train_group import RankLostError
from relax_engine.errors import RelaxError
from relax_engine.rollout.pool import EnginesLostError
from relax_engine.stream.errors import BlockLostError, StreamTimeoutError, StreamUnavailableError
from relax_engine.utils.redact import redact
from relax_engine.weight_sync.messages import WeightSyncError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

INTERRUPTIONS: tuple[type[BaseException], ...] = (
    RayActorError,
    ObjectLostError,
    WorkerCrashedError,
    RayServeException,  # it is being started again
    RankLostError,
    EngineUnreachableError,
    EngineDeadlineError,
    EngineLaunchError,
    EnginesLostError,
    WeightSyncError,
    StreamUnavailableError,
    StreamTimeoutError,
    BlockLostError,
)
"""A process died or fell silent. Whatever else a role raises (for a reward, a prompt, a shape) it would raise again."""


class RoleError(RelaxError):
    """A role failed; the message says which and why.

    `interrupted`: something that the role depends on died, so that the same work may succeed when it is there again.
    """

    def __init__(self, message: str, *, interrupted: bool = False) -> None:
        super().__init__(message)
        self.interrupted = interrupted


def root_cause(error: BaseException) -> BaseException:
    """The exception that was raised first, through any number of remote calls and groups."""
    while True:
        if isinstance(error, RayTaskError) and isinstance(error.cause, BaseException) and error.cause is not error:
            error = error.cause
        elif isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        else:
            return error


def role_failure(role: str, error: BaseException, run_dir: Path) -> RoleError:
    """The error to raise for a failed role; the full remote traceback goes to `errors.log` in `run_dir`."""
    if isinstance(error, RoleError):
        return error
    cause = root_cause(error)
    path = run_dir / "errors.log"
    with path.open("a") as file:
        file.write(f"role {role}: {redact(_COLOUR.sub('', str(error)))}\n\n")
    kind = "" if isinstance(cause, RelaxError) else f"{type(cause).__name__}: "
    return RoleError(
        f"role {role!r} failed: {kind}{redact(str(cause))}\n(remote traceback: {path})",
        interrupted=isinstance(cause, INTERRUPTIONS),
    )
