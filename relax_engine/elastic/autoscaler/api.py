"""The autoscaler over HTTP.

GET  /status          200 whether it acts, engines, load, last decision
POST /enable          200 {"enabled": bool}; 422
GET  /conditions      200 every condition with value, bound and whether it holds
GET  /scale_history   200 the newest decisions first; 422
GET  /health          200, open; 503 when the loop has ended
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, ConfigDict

from relax_engine.access.guard import AccessGuard
from relax_engine.access.policy import installed
from relax_engine.elastic.autoscaler.loop import Autoscaler


class EnableBody(BaseModel):
    """Whether the autoscaler is to act."""

    model_config = ConfigDict(extra="forbid", strict=True)

    enabled: bool = True


def autoscaler_api(autoscaler: Callable[[], Autoscaler], ended: Callable[[], str | None]) -> FastAPI:
    """The application; `autoscaler` is asked at every request, `ended` says why its loop has ended, if it has."""
    app = FastAPI(title="relax autoscaler", docs_url=None, redoc_url=None)
    app.add_middleware(
        AccessGuard,
        token=lambda: installed().api_token,
        open_paths=("/health",),
        limit=lambda: installed().max_body_bytes,
    )

    @app.get("/status")
    async def status() -> dict[str, Any]:
        return autoscaler().status()

    @app.post("/enable")
    async def enable(body: EnableBody) -> dict[str, bool]:
        autoscaler().enabled = body.enabled
        return {"enabled": body.enabled}

    @app.get("/conditions")
    async def conditions() -> dict[str, Any]:
        return autoscaler().conditions()

    @app.get("/scale_history")
    async def scale_history(limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> dict[str, Any]:
        return autoscaler().scale_history(limit)

    @app.get("/health")
    async def health() -> dict[str, str]:
        reason = ended()
        if reason is not None:
            raise HTTPException(503, f"the autoscaler has ended: {reason}")
        return {"status": "ok"}

    return app
