"""The autoscaler inside a run: a Ray Serve deployment at `/autoscaler`.

Serve starts it again when its process dies; its window and history begin anew then. Nothing of the run waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from ray import serve

from relax_engine.access.listener import trusting
from relax_engine.access.policy import AccessPolicy, install
from relax_engine.elastic.autoscaler.api import autoscaler_api
from relax_engine.elastic.autoscaler.config import AutoscalerConfig
from relax_engine.elastic.autoscaler.loop import Autoscaler
from relax_engine.elastic.autoscaler.rollout_api import RolloutApi
from relax_engine.utils.logging import redact_records

NAME = "autoscaler"


@dataclass(frozen=True, slots=True)
class AutoscalerContext:
    """What the deployment is given. `base_url` is where the roles' APIs listen, `certificate` theirs with HTTPS."""

    config: AutoscalerConfig
    access: AccessPolicy
    base_url: str
    certificate: str | None = None


class AutoscalerService:
    """Holds the autoscaler and its loop."""

    def __init__(self, context: AutoscalerContext) -> None:
        install(context.access)
        redact_records()
        api = RolloutApi(
            f"{context.base_url}/rollout",
            context.access.api_token,
            timeout_s=context.config.request_timeout,
            tls=trusting(context.certificate),
        )
        self.autoscaler = Autoscaler(context.config, api)
        self._loop = asyncio.get_running_loop().create_task(self.autoscaler.run())

    def __serve_build_asgi_app__(self) -> FastAPI:
        return autoscaler_api(lambda: self.autoscaler, self.ended)

    def ended(self) -> str | None:
        """Why the loop has ended, None while it goes on."""
        if not self._loop.done():
            return None
        return "cancelled" if self._loop.cancelled() else repr(self._loop.exception())

    def check_health(self) -> None:
        """Have Serve start the deployment again when the loop has ended.

        Raises:
            RuntimeError: it has.
        """
        if self._loop.done():
            raise RuntimeError(f"the autoscaler has ended: {self.ended()}")


def autoscaler_target(context: AutoscalerContext) -> serve.RunTarget:
    """What Serve is to run."""
    deployment: Any = serve.deployment(serve.ingress()(AutoscalerService))
    bound = deployment.options(name=NAME, num_replicas=1, ray_actor_options={"num_cpus": 0}).bind(context)
    return serve.RunTarget(bound, name=NAME, route_prefix=f"/{NAME}")
