"""How scaling fails: categories for engines that do not join, and refusals with their HTTP status."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from relax_engine.errors import RelaxError
from relax_engine.utils.redact import redact

_LONGEST = 500


class FailureCategory(StrEnum):
    """Why an engine did not join."""

    PROVISION_TIMEOUT = "PROVISION_TIMEOUT"
    """The cluster had no room for it in time."""
    ENGINE_INIT_FAILED = "ENGINE_INIT_FAILED"
    """Its process ended, or did not answer in time."""
    HEALTH_CHECK_FAILED = "HEALTH_CHECK_FAILED"
    """It answers, but generates nothing."""
    WEIGHT_SYNC_FAILED = "WEIGHT_SYNC_FAILED"
    """The present weights did not reach it."""
    TRANSPORT_MISMATCH = "TRANSPORT_MISMATCH"
    """It serves another model, other sizes or another number format."""
    INVALID_ENGINE_ADDRESS = "INVALID_ENGINE_ADDRESS"
    """Its URL is none, or leads where it may not."""
    EXTERNAL_ENGINE_CONNECT_FAILED = "EXTERNAL_ENGINE_CONNECT_FAILED"
    """Nobody answers at its URL."""
    UNKNOWN = "UNKNOWN"
    """Whatever else was raised."""


class EngineJoinError(RelaxError):
    """An engine cannot join."""

    def __init__(self, category: FailureCategory, message: str) -> None:
        super().__init__(message)
        self.category = category


class ScaleRefusedError(RelaxError):
    """A scale request is not taken; `status` is its HTTP status, `answer` the status in the body."""

    status: ClassVar[int] = 400
    answer: ClassVar[str] = "REJECTED"

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class UnknownScaleError(ScaleRefusedError):
    """There is no such model or request."""

    status = 404
    answer = "NOT_FOUND"


class ScaleConflictError(ScaleRefusedError):
    """Another operation on the model is under way; `request_id` is its."""

    status = 409
    answer = "CONFLICT"


class FencedError(ScaleRefusedError):
    """A weight update is under way and did not end in time."""

    status = 503
    answer = "BUSY"


class StartingError(ScaleRefusedError):
    """The run has no engines yet."""

    status = 503
    answer = "BUSY"


def bounded(error: BaseException | str) -> str:
    """The message of `error` for a status: in one line, without credentials, and not too long."""
    text = redact(" ".join((error if isinstance(error, str) else str(error) or repr(error)).split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
