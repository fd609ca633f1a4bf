"""Whether an engine that somebody else started may join: what it serves, before any weights go to it.

What lives here: the comparison with an engine of the run. What does not: where a URL may lead (`urls.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineCallError, EngineRefusedError
from relax_engine.elastic.failures import EngineJoinError, FailureCategory

SAME = (
    "architectures",
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "dtype",
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
)
"""What must be equal, where both servers tell it."""


async def engine_facts(url: str, timeout_s: float) -> dict[str, Any]:
    """What the engine at `url` says about its model and itself.

    Raises:
        EngineJoinError: it does not answer, or is no engine.
    """
    try:
        async with EngineClient(url, timeout_s=timeout_s) as client:
            return {**await client.server_info(), **await client.model_info()}
    except EngineRefusedError as error:
        raise EngineJoinError(FailureCategory.TRANSPORT_MISMATCH, f"{url} does not speak the API: {error}") from error
    except (EngineCallError, ValueError, TypeError) as error:
        raise EngineJoinError(FailureCategory.EXTERNAL_ENGINE_CONNECT_FAILED, f"no engine at {url}: {error}") from error


def require_same(url: str, facts: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Return when the engine at `url` serves what an engine of the run does.

    Args:
        url: The candidate.
        facts: What it says.
        own: What an engine of the run says.

    Raises:
        EngineJoinError: names every difference with both values.
    """
    differences = [
        f"{name} is {facts[name]!r} instead of {own[name]!r}"
        for name in SAME
        if facts.get(name) is not None and own.get(name) is not None and facts[name] != own[name]
    ]
    if facts.get("is_generation") is False:
        differences.append("it generates nothing (is_generation is false)")
    if not facts.get("architectures") and not facts.get("model_type"):
        differences.append("it does not say which model it serves")
    longest, needed = facts.get("context_length"), own.get("context_length")
    if longest is not None and needed is not None and longest < needed:
        differences.append(f"context_length is {longest}, less than {needed}")
    if differences:
        raise EngineJoinError(FailureCategory.TRANSPORT_MISMATCH, f"{url}: {'; '.join(differences)}")


async def require_generates(url: str, timeout_s: float) -> None:
    """Return when the engine generates a token.

    Raises:
        EngineJoinError: it does not within `timeout_s`.
    """
    try:
        async with EngineClient(url, timeout_s=timeout_s) as client:
            await client.health(generate=True, deadline_s=timeout_s)
    except EngineCallError as error:
        raise EngineJoinError(FailureCategory.HEALTH_CHECK_FAILED, str(error)) from error
