"""The HTTP API of the metrics service, with the paths and bodies that Relax's has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from relax_engine.access.guard import AccessGuard
from relax_engine.access.policy import installed
from relax_engine.observe.service.book import MetricsBook, finite


class OneMetric(BaseModel):
    """One metric of a step."""

    step: int
    metric_name: str = Field(min_length=1, max_length=200)
    metric_value: float
    tags: dict[str, str] = {}


class ManyMetrics(BaseModel):
    """Metrics of a step; `lost` are those that the client could not send before them."""

    step: int
    metrics: dict[str, float]
    tags: dict[str, str] = {}
    lost: int = Field(0, ge=0)


class Reported(BaseModel):
    """A step of which everything was posted."""

    step: int


class ErrorReport(BaseModel):
    """An error that somebody wants noted."""

    error_message: str = Field(max_length=10_000)
    error_traceback: str = Field("", max_length=100_000)


def metrics_api(book: Callable[[], MetricsBook]) -> FastAPI:
    """The application. Everything but `/health` takes the run's token."""
    app = FastAPI(title="relax metrics", openapi_url="/openapi.json", docs_url=None, redoc_url=None)
    app.add_middleware(
        AccessGuard,
        token=lambda: installed().api_token,
        open_paths=("/health",),
        limit=lambda: installed().max_body_bytes,
    )

    @app.post("/log_metric")
    def log_metric(body: OneMetric) -> dict[str, Any]:
        book().post(body.step, finite({body.metric_name: body.metric_value}))
        return {"status": "ok"}

    @app.post("/log_metrics_batch")
    def log_metrics_batch(body: ManyMetrics) -> dict[str, Any]:
        book().post(body.step, finite(body.metrics), lost=body.lost)
        return {"status": "ok"}

    @app.post("/report_step")
    def report_step(body: Reported) -> dict[str, Any]:
        return {"status": "ok", "metrics": book().report(body.step)}

    @app.post("/clear_metrics")
    def clear_metrics() -> dict[str, Any]:
        book().clear()
        return {"status": "ok"}

    @app.post("/log_error")
    def log_error(body: ErrorReport) -> dict[str, Any]:
        book().error(body.error_message, body.error_traceback)
        return {"status": "ok"}

    @app.get("/query_metrics")
    def query_metrics(
        metric: Annotated[Sequence[str], Query()] = ("*",), start: int = 0, end: int | None = None
    ) -> dict[str, Any]:
        """Series for steps `start` to `end`, and the gaps in what was posted."""
        return {"series": book().metrics.query(metric, start=start, end=end), "gaps": book().gaps()}

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "processes": {"service": os.getpid()}}

    @app.get("/")
    def prometheus() -> PlainTextResponse:
        return PlainTextResponse(book().metrics.prometheus(), media_type="text/plain; version=0.0.4")

    return app
