"""What a reward worker process does: receive calls, run them one by one, send back each result.

What lives here: the child's side of the pool's protocol. What does not: starting and killing
children (`zygote`) and deciding which call goes where (`pool`).

Protocol over one connection. In: a pickled list of `CallRequest`. Out, per list: `LOADED` once all
functions of the list are imported, then one pickled `CallResult` per call, in order.
"""

from __future__ import annotations

import pickle
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from relax_engine.rewards.functions import RewardFunction, call_reward
from relax_engine.utils.hooks import load_function

LOADED = b"loaded"


class CallRequest(NamedTuple):
    """`payload` is a pickled pair: a sample or list of samples, and the function's keyword arguments."""

    reference: str
    payload: bytes


class CallResult(NamedTuple):
    """`value` if `cause` is empty; else the error in one line and its traceback, and whether the call was `lost`:
    it missed its deadline, or its process died.
    """

    value: Any
    elapsed_s: float
    cause: str = ""
    details: str = ""
    lost: bool = False


def serve_calls(connection: Connection, args: Any) -> None:
    """Serve until the other end closes."""
    while True:
        try:
            requests: list[CallRequest] = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        functions = [_load(request.reference) for request in requests]
        connection.send_bytes(LOADED)
        for request, function in zip(requests, functions, strict=True):
            connection.send_bytes(_run(function, request.payload, args))


def _load(reference: str) -> RewardFunction | CallResult:
    started = time.monotonic()
    try:
        return load_function(reference)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code; its error goes to the caller
        return _failure(error, started)


def _run(function: RewardFunction | CallResult, payload: bytes, args: Any) -> bytes:
    started = time.monotonic()
    if isinstance(function, CallResult):
        return pickle.dumps(function)
    try:
        value = call_reward(function, args, *pickle.loads(payload))
        return pickle.dumps(CallResult(value, time.monotonic() - started))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code; its error goes to the caller
        return pickle.dumps(_failure(error, started))


def _failure(error: Exception | SystemExit, started: float) -> CallResult:
    cause = f"{type(error).__name__}: {error}"
    return CallResult(None, time.monotonic() - started, cause, traceback.format_exc())
