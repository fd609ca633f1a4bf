"""Errors of the embedded engine. Each becomes one HTTP status; the message reaches the caller unchanged."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the engine's own errors."""


class BadRequestError(EngineError):
    """The request cannot be served as written (HTTP 400); the message names field, value and bound."""


class ModelError(EngineError):
    """The model directory cannot be served: missing file, unknown architecture, wrong tensor (exit status 2)."""


class WeightUpdateError(BadRequestError):
    """A weight update was refused or failed (HTTP 400); the engine keeps serving the weights it had."""
