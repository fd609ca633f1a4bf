"""The call of a user's generation function that this code is part of, for hooks that are not handed everything.

What lives here: what a call is given, and what it has sampled so far. What does not: what hooks do with it (`toolbox`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import GenerateOutput
from relax_engine.rollout.pool import RolloutError
from relax_engine.types import Sample


@dataclass(slots=True)
class Call:
    """One call: `args` and `params` as the function gets them, the engine chosen for it, and its answers so far, each
    with the length of the context behind it."""

    args: Any
    sample: Sample
    params: dict[str, Any]
    client: EngineClient
    outputs: list[tuple[int, GenerateOutput]] = field(default_factory=list)
    prompt_length: int | None = None


_call: ContextVar[Call] = ContextVar("call")


@contextlib.contextmanager
def set_call(call: Call) -> Iterator[None]:
    """Make `call` the present one inside the block."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def current_call() -> Call:
    """The present call.

    Raises:
        RolloutError: there is none: this is no part of a generation function that the run called.
    """
    try:
        return _call.get()
    except LookupError:
        raise RolloutError(
            "there is no generation under way: engine, tokenize, max_turns and finalize are for functions that "
            "--custom-generate-function-path names"
        ) from None
