"""Scale requests: what was asked for, how far it is, and what became of each engine.

What lives here: the records, and the only way to change their status. What does not: doing the work.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from relax_engine.elastic.failures import EngineJoinError, FailureCategory, bounded
from relax_engine.elastic.states import (
    IN_TRANSITIONS,
    OUT_TRANSITIONS,
    ScaleInStatus,
    ScaleOutStatus,
    step,
)


@dataclass(slots=True, kw_only=True)
class _Request:
    model_name: str
    timeout_s: float
    """From its acceptance to its end."""
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    message: str = ""
    failed_engines: dict[str, str] = field(default_factory=dict)
    """Why, by engine."""
    expires: float = field(init=False)
    """On the monotonic clock."""

    def __post_init__(self) -> None:
        self.expires = time.monotonic() + self.timeout_s

    def left(self) -> float:
        """Seconds to its deadline, 0 afterwards."""
        return max(0.0, self.expires - time.monotonic())


@dataclass(slots=True, kw_only=True)
class ScaleOut(_Request):
    """A request for more engines.

    Trace of one that asks for 3 engines where 1 is, and of which one does not start, under `keep_partial`::

        PENDING -> CREATING          two engines are started; one ends during its start
                -> HEALTH_CHECKING   the other one generates a token
                -> WEIGHT_SYNCING    it gets the present weights; training goes on
                -> READY             it holds them, and gets no requests yet
                -> PARTIAL           it gets requests

    Under `rollback_all` the last two are REMOVING -> FAILED.
    """

    num_replicas: int | None = None
    """Engines that are to be there in all."""
    engine_urls: tuple[str, ...] = ()
    """External engines to take in."""
    status: ScaleOutStatus = ScaleOutStatus.PENDING
    engine_ids: list[str] = field(default_factory=list)
    """URLs of the engines that were made or taken in."""
    failure_categories: dict[str, FailureCategory] = field(default_factory=dict)
    weight_version: int | None = None
    cancelled: bool = False

    @property
    def finished(self) -> bool:
        """Whether it stays as it is."""
        return self.status not in OUT_TRANSITIONS

    def same_as(self, num_replicas: int | None, engine_urls: Sequence[str]) -> bool:
        """Whether it asks for the same."""
        return self.num_replicas == num_replicas and set(self.engine_urls) == set(engine_urls)

    def advance(self, status: ScaleOutStatus) -> None:
        """Go on to `status`.

        Raises:
            IllegalTransitionError: it may not follow the present one.
        """
        self.status = step(OUT_TRANSITIONS, self.status, status)
        self.updated_at = time.time()

    def lose(self, engine: str, error: BaseException) -> None:
        """An engine will not join."""
        category = error.category if isinstance(error, EngineJoinError) else FailureCategory.UNKNOWN
        self.failed_engines[engine] = bounded(error)
        self.failure_categories[engine] = category


@dataclass(slots=True, kw_only=True)
class ScaleIn(_Request):
    """A request for fewer engines.

    Trace of a drain that comes to its end::

        PENDING  -> DRAINING    the engines get no further requests; the drain ends with the last one in flight
                 -> REMOVING    no weight update is under way: they leave, then their processes end
                 -> COMPLETED
    """

    selected_engines: tuple[str, ...]
    num_replicas: int | None = None
    """Engines that are to be left in all."""
    engine_urls: tuple[str, ...] = ()
    force: bool = False
    """Without a drain."""
    evicted: bool = False
    """Whether the engines were told to end by their machine, and not by a request."""
    status: ScaleInStatus = ScaleInStatus.PENDING
    removed_engines: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether it stays as it is."""
        return self.status not in IN_TRANSITIONS

    def same_as(self, num_replicas: int | None, engine_urls: Sequence[str], force: bool) -> bool:
        """Whether it asks for the same."""
        wanted = (self.num_replicas, set(self.engine_urls), self.force)
        return not self.evicted and wanted == (num_replicas, set(engine_urls), force)

    def advance(self, status: ScaleInStatus) -> None:
        """Go on to `status`.

        Raises:
            IllegalTransitionError: it may not follow the present one.
        """
        self.status = step(IN_TRANSITIONS, self.status, status)
        self.updated_at = time.time()
