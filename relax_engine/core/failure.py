"""From what Ray raises to what a person needs: which role failed, why, and where the details are."""

from __future__ import annotations

import re
from pathlib import Path

from ray.exceptions import RayTaskError

from relax_engine.errors import RelaxError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class RoleError(RelaxError):
    """A role failed; the message says which and why."""


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
        file.write(f"role {role}: {_COLOUR.sub('', str(error))}\n\n")
    kind = "" if isinstance(cause, RelaxError) else f"{type(cause).__name__}: "
    return RoleError(f"role {role!r} failed: {kind}{cause}\n(remote traceback: {path})")
