"""Calls to the stream's actors: every answer has a deadline, and failures come back as the stream's own errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayTaskError

from relax_engine.stream.errors import StreamRestartingError, StreamUnavailableError
from relax_engine.utils.waits import waiting

RETRY_S = 0.2
CONTROLLER = "the stream controller"

Submit = Callable[[float], ray.ObjectRef]
"""Makes a call; gets the seconds that are left for it. Called again when the controller was restarted meanwhile."""


def server_wait(deadline_s: float) -> float:
    """How long the controller may wait so that its explanation still arrives before the caller's deadline."""
    return deadline_s - min(1.0, 0.2 * deadline_s)


def settle(ref: ray.ObjectRef, deadline_s: float, call: str, who: str = CONTROLLER) -> Any:
    """The answer of one call to `who`, the controller or a storage unit.

    Raises:
        StreamRestartingError: it died and is being restarted; the call may have been carried out.
        StreamUnavailableError: it is dead or silent.
        Exception: what the call raised, with the remote traceback as its cause.
    """
    try:
        with waiting(call):
            return ray.get(ref, timeout=deadline_s)
    except (GetTimeoutError, RayTaskError, RayActorError) as error:
        raise _translate(error, deadline_s, call, who) from error


def ask(submit: Submit, deadline_s: float, call: str, who: str = CONTROLLER) -> Any:
    """`settle` for calls that may be carried out twice: repeated while the process that answers is being restarted."""
    end = time.monotonic() + deadline_s
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            return settle(submit(left), left, call, who)
        except StreamRestartingError:
            if end - time.monotonic() < RETRY_S:
                raise
            time.sleep(RETRY_S)


async def aask(submit: Submit, deadline_s: float, call: str) -> Any:
    """`ask` for asyncio callers."""
    end = time.monotonic() + deadline_s
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            with waiting(call):
                return await asyncio.wait_for(asyncio.wrap_future(submit(left).future()), left)
        except (TimeoutError, RayTaskError, RayActorError) as error:
            failure = _translate(error, deadline_s, call, CONTROLLER)
            if not isinstance(failure, StreamRestartingError) or end - time.monotonic() < RETRY_S:
                raise failure from error
            await asyncio.sleep(RETRY_S)


def _translate(error: Exception, deadline_s: float, call: str, who: str) -> Exception:
    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, Exception) else error
    if isinstance(error, ActorUnavailableError):
        return StreamRestartingError(f"{call}: {who} died and has not come back ({error})")
    if isinstance(error, RayActorError):
        return StreamUnavailableError(f"{call}: {who} is dead ({type(error).__name__}: {error})")
    return StreamUnavailableError(f"{call}: {who} did not answer within {deadline_s:.1f} s")
