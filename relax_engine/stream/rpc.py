"""Calls to the stream's actors: every answer has a deadline, and failures come back as the stream's own errors."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from relax_engine.stream.errors import StreamUnavailableError


def server_wait(deadline_s: float) -> float:
    """How long the controller may wait so that its explanation still arrives before the caller's deadline."""
    return deadline_s - min(1.0, 0.2 * deadline_s)


def settle(ref: ray.ObjectRef, deadline_s: float, call: str) -> Any:
    """The answer of a controller call.

    Raises:
        StreamUnavailableError: the controller is dead or silent.
        Exception: what the call raised, with the remote traceback as its cause.
    """
    try:
        return ray.get(ref, timeout=deadline_s)
    except (GetTimeoutError, RayTaskError, RayActorError) as error:
        raise _translate(error, deadline_s, call) from error


async def asettle(ref: ray.ObjectRef, deadline_s: float, call: str) -> Any:
    """`settle` for asyncio callers."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(ref.future()), deadline_s)
    except (TimeoutError, RayTaskError, RayActorError) as error:
        raise _translate(error, deadline_s, call) from error


def _translate(error: Exception, deadline_s: float, call: str) -> Exception:
    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, Exception) else error
    if isinstance(error, RayActorError):
        return StreamUnavailableError(f"{call}: the stream controller is dead ({type(error).__name__}: {error})")
    return StreamUnavailableError(f"{call}: the stream controller did not answer within {deadline_s:.1f} s")
