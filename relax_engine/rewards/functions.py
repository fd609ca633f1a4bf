"""Calling a reward function in the way its signature asks for.

What lives here: arity and async. What does not: loading by path (`relax_engine.utils.hooks`), and where and for how
long the function runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

RewardFunction = Callable[..., Any]


_args: ContextVar[Any] = ContextVar("args")


def current_args() -> Any:
    """The `args` of the reward call that this is part of, for functions that take the sample alone.

    Raises:
        LookupError: this is no part of a reward call.
    """
    return _args.get()


def is_async(function: RewardFunction) -> bool:
    """Whether calling the function gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def call_reward(function: RewardFunction, args: Any, payload: Any, arguments: Mapping[str, Any] | None = None) -> Any:
    """Call `function(args, payload, **arguments)`, or `function(payload, **arguments)` if that is its signature.

    `payload` is a sample, or a list of samples. A function takes the payload alone if its first
    parameter is named `sample` or `samples`, or if it cannot be given two positional arguments.
    """
    _args.set(args)
    positional = (payload,) if _takes_payload_only(function) else (args, payload)
    return function(*positional, **(arguments or {}))


def takes_groups(function: RewardFunction) -> bool:
    """Whether its parameter for what it scores is called `samples`: `(args, samples)` or `(samples)`."""
    return "samples" in list(inspect.signature(function).parameters)[:2]


def _takes_payload_only(function: RewardFunction) -> bool:
    signature = inspect.signature(function)
    parameters = list(signature.parameters)
    if parameters and parameters[0] in ("sample", "samples"):
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return True
    return False
