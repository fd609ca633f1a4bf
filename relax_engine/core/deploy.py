"""Serve applications brought up and taken down with deadlines.

Serve's own waits have none and block a thread: a run that is cancelled meanwhile could not end. Here every wait is
between short calls, and a call that was begun is seen through before a cancellation goes on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ray import serve
from ray.serve.schema import ApplicationStatus

from relax_engine.core.failure import RoleError

_POLL_S = 0.1
_ONE_AT_A_TIME = threading.Lock()
"""Serve pickles classes whose methods it wraps meanwhile: two roles deployed by two threads break each other."""


async def deploy(targets: Sequence[serve.RunTarget], deadline_s: float) -> None:
    """Start applications; return when all of them run.

    Raises:
        RoleError: one failed to start, or does not run within `deadline_s`.
    """
    await _seen_through(_run_many, targets)
    names = [target.name for target in targets]
    end = time.monotonic() + deadline_s
    while True:
        found = await _applications()
        for name in names:
            if name in found and found[name].status == ApplicationStatus.DEPLOY_FAILED:
                raise RoleError(f"role {name!r} did not start: {found[name].message}", interrupted=True)
        waiting = [name for name in names if name not in found or found[name].status != ApplicationStatus.RUNNING]
        if not waiting:
            return
        if time.monotonic() > end:
            raise RoleError(f"{_roles(waiting)} did not start within {deadline_s:g} s", interrupted=True)
        await asyncio.sleep(_POLL_S)


def _run_many(targets: Sequence[serve.RunTarget]) -> None:
    with _ONE_AT_A_TIME:
        serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


async def delete(names: Collection[str], deadline_s: float) -> None:
    """Delete applications; return when all of them are gone.

    Raises:
        RoleError: one is still there after `deadline_s`.
    """
    for name in names:
        await _seen_through(serve.delete, name, _blocking=False)
    end = time.monotonic() + deadline_s
    while left := [name for name in await _applications() if name in names]:
        if time.monotonic() > end:
            raise RoleError(f"{_roles(left)} did not end within {deadline_s:g} s", interrupted=True)
        await asyncio.sleep(_POLL_S)


async def _applications() -> dict[str, Any]:
    return (await _seen_through(serve.status)).applications


async def _seen_through(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call in a thread; a cancellation waits for the end of the call."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise


def _roles(names: Sequence[str]) -> str:
    return f"role{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
