"""Serve applications of roles: no wait outlives its deadline, or the one who waits."""

from __future__ import annotations

import asyncio
import time

import pytest
from ray import serve

from relax_engine.core.deploy import delete, deploy
from relax_engine.core.failure import RoleError


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Slow:
    """Takes longer to start than anybody here waits."""

    def __init__(self) -> None:
        time.sleep(60)


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Quick:
    """Is there at once."""


def target(cls: serve.Deployment, name: str) -> serve.RunTarget:
    application = cls.options(name=name, graceful_shutdown_timeout_s=0).bind()
    return serve.RunTarget(application, name=name, route_prefix=f"/{name}")


def test_a_role_that_does_not_start_costs_its_deadline_and_a_cancellation_nothing(ray_cluster: None) -> None:
    serve.start(http_options={"host": "127.0.0.1", "port": 0}, logging_config={"log_level": "ERROR"})

    async def scene() -> None:
        await deploy([target(Quick, "quick")], 60)
        with pytest.raises(RoleError, match=r"role 'slow' did not start within 0\.5 s") as caught:
            await deploy([target(Slow, "slow")], 0.5)
        assert caught.value.interrupted
        waiting = asyncio.create_task(deploy([target(Slow, "slower")], 300))
        await asyncio.sleep(1)
        waiting.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time.monotonic() - began < 10
        await delete(["quick", "slow", "slower"], 30)
        assert not {"quick", "slow", "slower"} & set(serve.status().applications)

    began = time.monotonic()
    asyncio.run(scene())  # joins all threads
    assert time.monotonic() - began < 60
