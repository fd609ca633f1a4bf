"""The states of scale requests, and which may follow which.

What lives here: two tables. What does not: what is done in a state (`growing.py`, `shrinking.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from relax_engine.errors import RelaxError


class ScaleOutStatus(StrEnum):
    """Where a scale-out request stands.

    An engine gets requests in ACTIVE and PARTIAL only. NOOP answers a request that has nothing to do.
    """

    PENDING = "PENDING"
    CREATING = "CREATING"
    CONNECTING = "CONNECTING"
    HEALTH_CHECKING = "HEALTH_CHECKING"
    WEIGHT_SYNCING = "WEIGHT_SYNCING"
    READY = "READY"
    ACTIVE = "ACTIVE"
    PARTIAL = "PARTIAL"
    REMOVING = "REMOVING"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    NOOP = "NOOP"


class ScaleInStatus(StrEnum):
    """Where a scale-in request stands. NOOP answers a request that has nothing to do."""

    PENDING = "PENDING"
    DRAINING = "DRAINING"
    REMOVING = "REMOVING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    NOOP = "NOOP"


_Out, _In = ScaleOutStatus, ScaleInStatus
_ENDS_BADLY = frozenset({_Out.REMOVING, _Out.FAILED})

OUT_TRANSITIONS: Mapping[ScaleOutStatus, frozenset[ScaleOutStatus]] = {
    _Out.PENDING: frozenset({_Out.CREATING, _Out.CONNECTING, _Out.CANCELLED, _Out.FAILED}),
    _Out.CREATING: frozenset({_Out.HEALTH_CHECKING}) | _ENDS_BADLY,
    _Out.CONNECTING: frozenset({_Out.HEALTH_CHECKING}) | _ENDS_BADLY,
    _Out.HEALTH_CHECKING: frozenset({_Out.WEIGHT_SYNCING}) | _ENDS_BADLY,
    _Out.WEIGHT_SYNCING: frozenset({_Out.READY}) | _ENDS_BADLY,
    _Out.READY: frozenset({_Out.ACTIVE, _Out.PARTIAL}) | _ENDS_BADLY,
    _Out.REMOVING: frozenset({_Out.FAILED, _Out.CANCELLED}),
}
"""A request that made engines leaves over REMOVING, which takes them away again."""

IN_TRANSITIONS: Mapping[ScaleInStatus, frozenset[ScaleInStatus]] = {
    _In.PENDING: frozenset({_In.DRAINING, _In.REMOVING, _In.FAILED}),
    _In.DRAINING: frozenset({_In.REMOVING, _In.FAILED}),
    _In.REMOVING: frozenset({_In.COMPLETED, _In.FAILED}),
}
"""`force` goes from PENDING to REMOVING."""

CANCELLABLE = frozenset({_Out.PENDING, _Out.CREATING})

Status = TypeVar("Status", ScaleOutStatus, ScaleInStatus)


class IllegalTransitionError(RelaxError):
    """A defect: a state was left for one that may not follow it."""


def step(table: Mapping[Status, frozenset[Status]], present: Status, following: Status) -> Status:
    """`following`, if it may follow `present`.

    Raises:
        IllegalTransitionError: it may not.
    """
    if following not in table.get(present, frozenset()):
        raise IllegalTransitionError(f"a scale request cannot go from {present} to {following}")
    return following
