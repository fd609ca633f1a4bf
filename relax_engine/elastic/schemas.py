"""Bodies and answers of the scaling API."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from relax_engine.elastic.failures import FailureCategory
from relax_engine.elastic.requests import ScaleIn, ScaleOut
from relax_engine.elastic.states import ScaleInStatus, ScaleOutStatus

DEFAULT_MODEL = "default"
"""Name of the model that the run trains."""

MOST_ENGINES = 4096
LONGEST_S = 86400.0

ModelName = Annotated[str, Field(min_length=1, max_length=128, description="Which engines: those of this model.")]
EngineUrls = Annotated[list[Annotated[str, Field(min_length=1, max_length=2048)]], Field(max_length=MOST_ENGINES)]
Timeout = Annotated[float | None, Field(gt=0, le=LONGEST_S, description="Deadline of the request, in seconds.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScaleOutBody(_Body):
    """More engines: either `num_replicas` or `engine_urls`."""

    model_name: ModelName = DEFAULT_MODEL
    num_replicas: int | None = Field(
        None, ge=0, le=MOST_ENGINES, strict=True, description="Engines that are to be there in all."
    )
    engine_urls: EngineUrls = Field([], description="Engines that run elsewhere and are to be taken in.")
    timeout_secs: Timeout = None


class ScaleInBody(_Body):
    """Fewer engines: `num_replicas`, which has priority, or `engine_urls`."""

    model_name: ModelName = DEFAULT_MODEL
    num_replicas: int | None = Field(
        None, ge=0, le=MOST_ENGINES, strict=True, description="Engines that are to be left in all."
    )
    engine_urls: EngineUrls = Field([], description="Engines that are to leave.")
    force: bool = Field(False, description="Do not wait for the requests that they have.")
    timeout_secs: Timeout = None
    dry_run: bool = Field(False, description="Only say which engines would leave.")


class CancelBody(_Body):
    """Which scale-out requests to cancel: all that can be, unless filters are given."""

    model_name: ModelName = DEFAULT_MODEL
    status_filter: ScaleOutStatus | None = Field(None, description="Only requests of this status.")
    dry_run: bool = Field(False, description="Only say which would be cancelled.")


class Accepted(BaseModel):
    """What became of a request; its id is empty where nothing has to be done."""

    request_id: str
    status: ScaleOutStatus
    message: str


class ScaleInAccepted(BaseModel):
    """What became of a request; its id is empty where nothing has to be done."""

    request_id: str
    status: ScaleInStatus
    message: str
    selected_engines: list[str]


class Refused(BaseModel):
    """The body of every error but 422: why, and `request_id` of the request that is in the way or was named."""

    detail: str
    status: str
    request_id: str | None = None


class ScaleOutState(BaseModel):
    """One scale-out request. Times are seconds since the epoch."""

    request_id: str
    status: ScaleOutStatus
    model_name: str
    num_replicas: int | None
    engine_urls: list[str]
    engine_ids: list[str]
    failed_engines: dict[str, str]
    failure_categories: dict[str, FailureCategory]
    created_at: float
    updated_at: float
    error_message: str | None
    weight_version: int | None

    @classmethod
    def of(cls, request: ScaleOut) -> ScaleOutState:
        """The state of a request now."""
        failed = request.status in (ScaleOutStatus.FAILED, ScaleOutStatus.CANCELLED)
        return cls(
            request_id=request.request_id,
            status=request.status,
            model_name=request.model_name,
            num_replicas=request.num_replicas,
            engine_urls=list(request.engine_urls),
            engine_ids=list(request.engine_ids),
            failed_engines=dict(request.failed_engines),
            failure_categories=dict(request.failure_categories),
            created_at=request.created_at,
            updated_at=request.updated_at,
            error_message=request.message if failed else None,
            weight_version=request.weight_version,
        )


class ScaleInState(BaseModel):
    """One scale-in request. Times are seconds since the epoch."""

    request_id: str
    status: ScaleInStatus
    model_name: str
    num_replicas: int | None
    engine_urls: list[str]
    selected_engines: list[str]
    removed_engines: list[str]
    failed_engines: dict[str, str]
    force: bool
    evicted: bool
    created_at: float
    updated_at: float
    error_message: str | None

    @classmethod
    def of(cls, request: ScaleIn) -> ScaleInState:
        """The state of a request now."""
        return cls(
            request_id=request.request_id,
            status=request.status,
            model_name=request.model_name,
            num_replicas=request.num_replicas,
            engine_urls=list(request.engine_urls),
            selected_engines=list(request.selected_engines),
            removed_engines=list(request.removed_engines),
            failed_engines=dict(request.failed_engines),
            force=request.force,
            evicted=request.evicted,
            created_at=request.created_at,
            updated_at=request.updated_at,
            error_message=request.message if request.status is ScaleInStatus.FAILED else None,
        )


class ScaleOutList(BaseModel):
    """Scale-out requests, newest first."""

    requests: list[ScaleOutState]
    total_count: int


class ScaleInList(BaseModel):
    """Scale-in requests, newest first."""

    requests: list[ScaleInState]
    total_count: int


class Cancelled(BaseModel):
    """What a batch cancel did: ids that were cancelled, and why others were not."""

    succeeded: list[str]
    skipped: dict[str, str]
    total_count: int
    dry_run: bool
    filters: dict[str, str | None]


class EngineState(BaseModel):
    """One engine; `status` is active, joining, starting, draining or dead."""

    rank: int
    status: str
    url: str
    origin: str
    outstanding: int
    reason: str | None
    pid: int | None
    node_id: str | None


class EngineGroupState(BaseModel):
    """Engines of one origin: initial, ray_native or external."""

    origin: str
    engines: list[EngineState]


class ModelState(BaseModel):
    """All engines of a model."""

    engine_groups: list[EngineGroupState]


class Engines(BaseModel):
    """All engines of the run, by model."""

    models: dict[str, ModelState]
    total_engines: int
