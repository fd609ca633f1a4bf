"""The dashboard's HTTP API and page, behind a bearer token.

What lives here: routes. What does not: what they answer (`places.py`, `family.py` and the readers of a run's files).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import SecretStr

from relax_engine.access.guard import AccessGuard
from relax_engine.observe.definitions import METRICS
from relax_engine.observe.events import EVENTS, read_events
from relax_engine.observe.journal import read_phases, read_state
from relax_engine.observe.rollouts.filters import FIELDS, TEXTS, QueryError
from relax_engine.observe.rollouts.media import CONTENT_TYPES, FILE_NAME
from relax_engine.observe.rollouts.media import DIRECTORY as MEDIA
from relax_engine.observe.service.book import read_gaps
from relax_engine.observe.ui.family import family, listing
from relax_engine.observe.ui.places import OpenRun, PlaceError, Places

STATIC = Path(__file__).parent / "static"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_LARGEST_BODY = 2**16
_MOST_ROWS = 500
_EVENTS_SHOWN = 300
_PHASES_SHOWN = 4000

Texts = Annotated[Sequence[str], Query()]


def dashboard(places: Places, token: SecretStr | None, store_url: str | None) -> FastAPI:
    """The application. Files of the page are open to everyone who reaches it; everything about runs needs the token."""
    app = FastAPI(title="relax dashboard", openapi_url=None, docs_url=None, redoc_url=None)
    _add_runs(app, places)
    _add_rollouts(app, places)

    @app.get("/api/artifacts")
    def artifacts() -> Any:
        return listing(store_url)

    @app.get("/api/lineage")
    def lineage(ref: str) -> Any:
        return family(store_url, ref)

    @app.exception_handler(PlaceError)
    @app.exception_handler(QueryError)
    def refused(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404 if isinstance(error, PlaceError) else 400)

    @app.middleware("http")
    async def with_headers(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    app.mount("/", StaticFiles(directory=STATIC, html=True), name="page")
    files = ["/" + str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()]
    app.add_middleware(AccessGuard, token=lambda: token, open_paths=["/", *files], limit=lambda: _LARGEST_BODY)
    return app


def _add_runs(app: FastAPI, places: Places) -> None:
    @app.get("/api/runs")
    def runs() -> Any:
        return [{"id": name, **places.run(name).summary()} for name in places.names()]

    @app.get("/api/definitions")
    def definitions() -> Any:
        return [{"name": m.name, "unit": m.unit, "meaning": m.meaning, "better": m.better} for m in METRICS]

    @app.get("/api/overview")
    def overview(run: str) -> Any:
        """What is under way, the newest metrics, and the last events."""
        opened = places.run(run)
        events = [*read_events(opened.directory / EVENTS), *map(_gap_event, read_gaps(opened.directory))]
        return {
            **opened.summary(),
            "state": read_state(opened.directory),
            "last": opened.metrics.last(),
            "metrics": opened.metrics.names(),
            "events": sorted(events, key=lambda event: float(event["time"]))[-_EVENTS_SHOWN:],
        }

    @app.get("/api/series")
    def series(run: str, metric: Texts, start: int = 0, end: int | None = None, points: int = 600) -> Any:
        return places.run(run).metrics.query(metric, start=start, end=end, points=max(2, min(points, 5000)))

    @app.get("/api/phases")
    def phases(run: str, start: float = 0.0) -> Any:
        """Phases of work that ended after `start` (seconds since the epoch)."""
        found = read_phases(places.run(run).directory, last=_PHASES_SHOWN)
        return [phase for phase in found if phase["end"] >= start]

    @app.get("/api/config")
    def config(run: str) -> Any:
        return places.run(run).config

    @app.get("/metrics")
    def prometheus(run: str | None = None) -> Response:
        """The newest values of a run, by default of the one that changed last, for Prometheus."""
        names = places.names()
        if run is None and not names:
            raise PlaceError("there is no run yet")
        text = places.run(names[0] if run is None else run).metrics.prometheus()
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _gap_event(gap: dict[str, Any]) -> dict[str, Any]:
    """A gap of the metrics service, as the page lists events."""
    names = ("reason", "lost", "before_step")
    details: dict[str, Any] = {name: gap[name] for name in names if name in gap}
    seconds = round(gap["end"] - gap["start"], 3)
    return {"time": gap["start"], "role": "metrics service", "kind": "gap", "seconds": seconds, **details}


def _add_rollouts(app: FastAPI, places: Places) -> None:
    @app.get("/api/fields")
    def fields() -> Any:
        return {"numbers": [name for name in FIELDS if name not in TEXTS], "texts": TEXTS}

    @app.get("/api/rollouts")
    def rollouts(
        run: str, where: Texts = (), sort: str = "step:desc", limit: int = 50, offset: int = 0, count: bool = True
    ) -> Any:
        samples = places.run(run).rollouts
        rows = samples.find(where, sort=sort, limit=max(1, min(limit, _MOST_ROWS)), offset=max(0, offset))
        return {"rows": rows, "count": samples.count(where) if count else None}

    @app.get("/api/media")
    def media(run: str, file: str) -> Response:
        """An image or a sound that a sample carried; the page shows what it fetched with the token."""
        opened = places.run(run)
        if FILE_NAME.fullmatch(file) is None:
            raise PlaceError(f"there is no recorded medium {file!r}")
        path = opened.directory / "rollouts" / MEDIA / file
        if not path.is_file():
            raise PlaceError(f"run {run!r} has no recorded medium {file}")
        return FileResponse(path, media_type=CONTENT_TYPES[file.partition(".")[2]])

    @app.get("/api/steps")
    def steps(run: str, where: Texts = ()) -> Any:
        return places.run(run).rollouts.steps(where)

    @app.get("/api/sample")
    def sample(run: str, step: int, index: int) -> Any:
        opened = places.run(run)
        found = opened.rollouts.sample(step, index)
        return {**found, "texts": _texts(opened, found), "group": opened.rollouts.group(step, found["group_index"])}


def _texts(opened: OpenRun, sample: dict[str, Any]) -> list[str]:
    texts: list[str] = opened.tokens.texts(sample["tokens"])
    return texts
