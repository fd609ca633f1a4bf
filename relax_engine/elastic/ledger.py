"""All scale requests of one model: the one that is under way, and those that ended not long ago."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from relax_engine.elastic.failures import ScaleConflictError, UnknownScaleError
from relax_engine.elastic.requests import ScaleIn, ScaleOut

KEPT = 200
"""Ended requests that are remembered, the newest ones."""

Record = TypeVar("Record", ScaleOut, ScaleIn)


class Ledger:
    """Requests by id, oldest first.

    Invariant: of the requests that were asked for, at most one is not finished. Evictions come unasked; they wait for
    their turn as PENDING.
    """

    def __init__(self) -> None:
        self._out: dict[str, ScaleOut] = {}
        self._in: dict[str, ScaleIn] = {}

    def running(self) -> ScaleOut | ScaleIn | None:
        """The request that is under way; an asked one before an eviction that waits."""
        requests: list[ScaleOut | ScaleIn] = [*self._out.values(), *self._in.values()]
        open_ones = [request for request in requests if not request.finished]
        return min(open_ones, key=lambda request: isinstance(request, ScaleIn) and request.evicted, default=None)

    def require_idle(self) -> None:
        """Return when nothing is under way.

        Raises:
            ScaleConflictError: something is; names it.
        """
        running = self.running()
        if running is not None:
            kind = "scale-out" if isinstance(running, ScaleOut) else "scale-in"
            raise ScaleConflictError(
                f"{kind} {running.request_id} of model {running.model_name!r} is {running.status}: wait for its end"
                + (", or cancel it" if isinstance(running, ScaleOut) else ""),
                running.request_id,
            )

    def add(self, request: ScaleOut | ScaleIn) -> None:
        """Take a request up, and forget the oldest ended ones beyond `KEPT`."""
        if isinstance(request, ScaleOut):
            self._out[request.request_id] = request
            _forget(self._out)
        else:
            self._in[request.request_id] = request
            _forget(self._in)

    def scale_out(self, request_id: str) -> ScaleOut:
        """The request of that id.

        Raises:
            UnknownScaleError: there is none.
        """
        return _find(self._out, request_id, "scale-out")

    def scale_in(self, request_id: str) -> ScaleIn:
        """The request of that id.

        Raises:
            UnknownScaleError: there is none.
        """
        return _find(self._in, request_id, "scale-in")

    def scale_outs(self, status: str | None = None) -> list[ScaleOut]:
        """Requests of that status, or all, newest first."""
        return _list(self._out.values(), status)

    def scale_ins(self, status: str | None = None) -> list[ScaleIn]:
        """Requests of that status, or all, newest first."""
        return _list(self._in.values(), status)


def _find(records: dict[str, Record], request_id: str, kind: str) -> Record:
    try:
        return records[request_id]
    except KeyError:
        raise UnknownScaleError(
            f"there is no {kind} request {request_id!r}; ended ones are forgotten in time"
        ) from None


def _list(records: Iterable[Record], status: str | None) -> list[Record]:
    return [record for record in reversed(list(records)) if status is None or record.status == status]


def _forget(records: dict[str, Record]) -> None:
    ended = [request_id for request_id, record in records.items() if record.finished]
    for request_id in ended[: max(0, len(ended) - KEPT)]:
        del records[request_id]
