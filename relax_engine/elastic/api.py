"""The scaling API over HTTP: paths, statuses, and nothing that decides.

POST /scale_out                  200 the request, or NOOP; 400, 404, 409, 422
GET  /scale_out                  200 requests, by model_name and status; 404
GET  /scale_out/{id}             200; 404
POST /scale_out/{id}/cancel      200; 400 too late, 404
POST /scale_out_cancel           200 which were cancelled; 404
POST /scale_in                   200 the request, or NOOP; 400, 404, 409, 422, 503
GET  /scale_in, /scale_in/{id}   as for scale_out
GET  /engines                    200

Annotations are objects here, not text: Serve pickles the application, and text would lose the names that it means.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from relax_engine.elastic.failures import ScaleRefusedError, UnknownScaleError, bounded
from relax_engine.elastic.requests import ScaleIn, ScaleOut
from relax_engine.elastic.scaler import Scaler
from relax_engine.elastic.schemas import (
    DEFAULT_MODEL,
    Accepted,
    CancelBody,
    Cancelled,
    EngineGroupState,
    Engines,
    EngineState,
    ModelState,
    Refused,
    ScaleInAccepted,
    ScaleInBody,
    ScaleInList,
    ScaleInState,
    ScaleOutBody,
    ScaleOutList,
    ScaleOutState,
)
from relax_engine.elastic.states import CANCELLABLE, ScaleInStatus, ScaleOutStatus


@dataclass(frozen=True, slots=True)
class Elasticity:
    """The scalers of a run by model, or why there are none."""

    scalers: Mapping[str, Scaler]
    refusal: str | None = None

    def scaler(self, model_name: str) -> Scaler:
        """The one of that model.

        Raises:
            ScaleRefusedError: this run cannot scale.
            UnknownScaleError: there is no such model.
        """
        if self.refusal is not None:
            raise ScaleRefusedError(f"this run cannot scale: {self.refusal}")
        try:
            return self.scalers[model_name]
        except KeyError:
            known = ", ".join(map(repr, self.scalers))
            raise UnknownScaleError(f"there is no model {model_name!r}; there is {known}") from None


def add_scaling(app: FastAPI, elasticity: Callable[[], Elasticity]) -> None:
    """Give `app` the paths; `elasticity` is asked at every request."""
    app.include_router(_router(elasticity))
    app.add_exception_handler(ScaleRefusedError, _refused)
    app.add_exception_handler(Exception, _failed)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ScaleRefusedError)
    body = Refused(detail=bounded(error), status=error.answer, request_id=error.request_id)
    headers = {"Retry-After": "5"} if error.status == 503 else None
    return JSONResponse(body.model_dump(), error.status, headers)


async def _failed(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse(Refused(detail=bounded(f"{type(error).__name__}: {error}"), status="ERROR").model_dump(), 500)


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Refused} for status in (*statuses, 500)}


def _router(elasticity: Callable[[], Elasticity]) -> APIRouter:
    router = APIRouter(tags=["scaling"])
    asked = Depends(elasticity)

    @router.post("/scale_out", response_model=Accepted, responses=_errors(400, 404, 409))
    async def scale_out(body: ScaleOutBody, present: Elasticity = asked) -> Any:
        """Add engines: so many that there are `num_replicas`, or those at `engine_urls`."""
        scaler = present.scaler(body.model_name)
        _one_target(body.num_replicas, body.engine_urls, both=False)
        return _answer(scaler.scale_out(body.num_replicas, body.engine_urls, body.timeout_secs))

    @router.get("/scale_out", response_model=ScaleOutList, responses=_errors(400, 404))
    async def list_scale_out(
        model_name: str = DEFAULT_MODEL, status: ScaleOutStatus | None = None, present: Elasticity = asked
    ) -> Any:
        """Scale-out requests, newest first."""
        found = [ScaleOutState.of(request) for request in present.scaler(model_name).ledger.scale_outs(status)]
        return ScaleOutList(requests=found, total_count=len(found))

    @router.get("/scale_out/{request_id}", response_model=ScaleOutState, responses=_errors(400, 404))
    async def get_scale_out(request_id: str, model_name: str = DEFAULT_MODEL, present: Elasticity = asked) -> Any:
        """One scale-out request."""
        return ScaleOutState.of(present.scaler(model_name).ledger.scale_out(request_id))

    @router.post("/scale_out/{request_id}/cancel", response_model=Accepted, responses=_errors(400, 404))
    async def cancel_scale_out(request_id: str, model_name: str = DEFAULT_MODEL, present: Elasticity = asked) -> Any:
        """Cancel a scale-out request that is PENDING or CREATING; what it made is taken away again."""
        return _answer(present.scaler(model_name).cancel(request_id))

    @router.post("/scale_out_cancel", response_model=Cancelled, responses=_errors(400, 404))
    async def cancel_many(body: CancelBody, present: Elasticity = asked) -> Any:
        """Cancel all scale-out requests of a status that can be."""
        scaler = present.scaler(body.model_name)
        found = scaler.ledger.scale_outs(body.status_filter)
        fitting = [request for request in found if request.status in CANCELLABLE]
        if not body.dry_run:
            for request in fitting:
                scaler.cancel(request.request_id)
        return Cancelled(
            succeeded=[request.request_id for request in fitting],
            skipped={r.request_id: f"it is {r.status}" for r in found if r not in fitting},
            total_count=len(found),
            dry_run=body.dry_run,
            filters={"model_name": body.model_name, "status_filter": body.status_filter},
        )

    @router.post("/scale_in", response_model=ScaleInAccepted, responses=_errors(400, 404, 409, 503))
    async def scale_in(body: ScaleInBody, present: Elasticity = asked) -> Any:
        """Remove engines: the last that were added until `num_replicas` are left, or those at `engine_urls`."""
        scaler = present.scaler(body.model_name)
        _one_target(body.num_replicas, body.engine_urls, both=True)
        return _answer(
            await scaler.scale_in(
                body.num_replicas,
                body.engine_urls,
                force=body.force,
                timeout_s=body.timeout_secs,
                dry_run=body.dry_run,
            )
        )

    @router.get("/scale_in", response_model=ScaleInList, responses=_errors(400, 404))
    async def list_scale_in(
        model_name: str = DEFAULT_MODEL, status: ScaleInStatus | None = None, present: Elasticity = asked
    ) -> Any:
        """Scale-in requests, newest first; evictions are among them."""
        found = [ScaleInState.of(request) for request in present.scaler(model_name).ledger.scale_ins(status)]
        return ScaleInList(requests=found, total_count=len(found))

    @router.get("/scale_in/{request_id}", response_model=ScaleInState, responses=_errors(400, 404))
    async def get_scale_in(request_id: str, model_name: str = DEFAULT_MODEL, present: Elasticity = asked) -> Any:
        """One scale-in request."""
        return ScaleInState.of(present.scaler(model_name).ledger.scale_in(request_id))

    @router.get("/engines", response_model=Engines, responses=_errors())
    async def engines(present: Elasticity = asked) -> Any:
        """All engines, those that are on their way in or out included."""
        models = {name: _model_state(scaler) for name, scaler in present.scalers.items()}
        total = sum(len(group.engines) for model in models.values() for group in model.engine_groups)
        return Engines(models=models, total_engines=total)

    return router


def _one_target(num_replicas: int | None, engine_urls: list[str], *, both: bool) -> None:
    if num_replicas is None and not engine_urls:
        raise ScaleRefusedError("the request names no target: give num_replicas or engine_urls")
    if num_replicas is not None and engine_urls and not both:
        raise ScaleRefusedError("num_replicas and engine_urls exclude each other: make two requests of it")


def _answer(request: ScaleOut | ScaleIn) -> Accepted | ScaleInAccepted:
    message = request.message or f"{request.request_id} is {request.status}"
    if isinstance(request, ScaleOut):
        return Accepted(request_id=request.request_id, status=request.status, message=message)
    return ScaleInAccepted(
        request_id=request.request_id,
        status=request.status,
        message=message,
        selected_engines=list(request.selected_engines),
    )


def _model_state(scaler: Scaler) -> ModelState:
    described = [EngineState(**engine) for engine in scaler.fleet.describe()]
    origins = dict.fromkeys(engine.origin for engine in described)
    return ModelState(
        engine_groups=[
            EngineGroupState(origin=origin, engines=[e for e in described if e.origin == origin]) for origin in origins
        ]
    )
