"""The metrics service inside a run: a Ray Serve deployment at `/metrics`.

Serve starts it again when its process dies. Nothing of the run waits for it, and the run's metrics do not pass through
it: it reads them from the run directory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve

from relax_engine.access.policy import AccessPolicy, install
from relax_engine.observe.service.api import metrics_api
from relax_engine.observe.service.book import MetricsBook
from relax_engine.utils.logging import redact_records

NAME = "metrics"
_BEAT_S = 2.0


@dataclass(frozen=True, slots=True)
class MetricsContext:
    """What the deployment is given."""

    run_dir: str
    access: AccessPolicy


class MetricsService:
    """Holds the book, and gives a sign of life."""

    def __init__(self, context: MetricsContext) -> None:
        install(context.access)
        redact_records()
        self.book = MetricsBook(Path(context.run_dir))
        self._beating = asyncio.get_running_loop().create_task(self._beat())

    def __serve_build_asgi_app__(self) -> FastAPI:
        return metrics_api(lambda: self.book)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            self.book.beat()


def metrics_target(context: MetricsContext) -> serve.RunTarget:
    """What Serve is to run."""
    deployment: Any = serve.deployment(serve.ingress()(MetricsService))
    bound = deployment.options(name=NAME, num_replicas=1, ray_actor_options={"num_cpus": 0}).bind(context)
    return serve.RunTarget(bound, name=NAME, route_prefix=f"/{NAME}")
