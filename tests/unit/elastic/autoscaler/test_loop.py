"""The autoscaler over HTTP: a rollout and engines that answer what they are told to, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from fastapi.testclient import TestClient
from pydantic import SecretStr

from relax_engine.access.policy import install, new_policy
from relax_engine.cli.autoscaler import render
from relax_engine.config import RunConfig
from relax_engine.elastic.autoscaler.api import autoscaler_api
from relax_engine.elastic.autoscaler.config import AutoscalerConfig
from relax_engine.elastic.autoscaler.loop import Autoscaler
from relax_engine.elastic.autoscaler.rollout_api import RolloutApi, RolloutApiError
from relax_engine.elastic.autoscaler.rules import Action

TOKEN = SecretStr("token")


class Site:
    """A rollout whose engines all have the same load; `calls` are the scale requests that it got."""

    def __init__(self) -> None:
        self.url = ""
        self.engines, self.usage, self.queued = 1, 0.95, 0
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refuse: int | None = None
        self.status = "active"

    async def fleet(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer token":
            return web.json_response({"detail": "no"}, status=401)
        engines = [
            {
                "rank": n,
                "status": self.status if n else "active",
                "url": f"{self.url}/{n}",
                "origin": "x" if n else "initial",
            }
            for n in range(self.engines)
        ]
        groups = [{"origin": "all", "engines": engines}]
        return web.json_response({"models": {"default": {"engine_groups": groups}}, "total_engines": self.engines})

    async def scale(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.refuse is not None:
            return web.json_response({"detail": "busy with token=abcdef"}, status=self.refuse)
        self.calls.append((request.path, body))
        self.engines = body["num_replicas"]
        return web.json_response({"request_id": "r1", "status": "PENDING", "message": "accepted"})

    async def metrics(self, request: web.Request) -> web.Response:
        assert "Authorization" not in request.headers  # the token is the rollout's, no engine's
        text = f"sglang:token_usage {self.usage}\nsglang:num_queue_reqs {self.queued}\nsglang:num_running_reqs 1\n"
        return web.Response(text=text)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.add_routes(
        [
            web.get("/rollout/engines", site.fleet),
            web.post("/rollout/scale_out", site.scale),
            web.post("/rollout/scale_in", site.scale),
            web.get("/{engine}/metrics", site.metrics),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    server = web.TCPSite(runner, "127.0.0.1", 0)
    await server.start()
    host, port = runner.addresses[0][:2]
    site.url = f"http://{host}:{port}"
    yield site
    await runner.cleanup()


def autoscaler(site: Site, **changes: Any) -> Autoscaler:
    config = AutoscalerConfig.model_validate(changes)
    return Autoscaler(config, RolloutApi(f"{site.url}/rollout", TOKEN, timeout_s=5))


async def watch(scaler: Autoscaler, start: float, seconds: float) -> float:
    """Look and decide every ten seconds of a clock that does not wait; returns the last moment."""
    now = start
    while now <= start + seconds:
        await scaler.collect(now)
        await scaler.act(now)
        now += 10.0
    return now - 10.0


async def test_out_under_load_and_in_when_it_is_gone(site: Site) -> None:
    scaler = autoscaler(site)
    now = await watch(scaler, 0.0, 30.0)
    assert site.calls == [("/rollout/scale_out", {"model_name": "default", "num_replicas": 4})]
    site.usage = 0.1
    now = await watch(scaler, now + 10, 320.0)
    assert site.calls[1:] == [("/rollout/scale_in", {"model_name": "default", "num_replicas": 3})]
    assert [(entry.action, entry.engines, entry.target, entry.outcome) for entry in scaler.history] == [
        (Action.OUT, 1, 4, "requested"),
        (Action.IN, 4, 3, "requested"),
    ]
    await watch(scaler, now + 10, 1500.0)
    assert site.engines == 1  # the initial one
    assert [body["num_replicas"] for _, body in site.calls] == [4, 3, 2, 1]


async def test_recommendations_are_recorded_once_and_nobody_is_asked(site: Site) -> None:
    for scaler in (autoscaler(site, recommend_only=True), autoscaler(site, enabled=False)):
        await watch(scaler, 0.0, 100.0)
        assert [(entry.target, entry.outcome) for entry in scaler.history] == [(4, "recommended")]
    assert site.calls == []


async def test_a_refusal_begins_no_cooldown(site: Site) -> None:
    scaler = autoscaler(site)
    site.refuse = 409
    now = await watch(scaler, 0.0, 30.0)
    assert [entry.outcome for entry in scaler.history] == ["refused"]
    assert "409" in scaler.history[0].message
    assert "abcdef" not in scaler.history[0].message
    site.refuse = None
    await watch(scaler, now + 10.0, 0.0)
    assert len(site.calls) == 1


async def test_it_waits_while_engines_join(site: Site) -> None:
    scaler = autoscaler(site)
    site.engines, site.status = 2, "joining"
    await watch(scaler, 0.0, 60.0)
    assert site.calls == []
    assert scaler.status()["last_decision"]["reason"] == "engines are joining or leaving"


async def test_a_rollout_that_is_away_or_refuses_the_token_is_an_error_that_is_shown(site: Site) -> None:
    scaler = Autoscaler(AutoscalerConfig(), RolloutApi(f"{site.url}/rollout", SecretStr("wrong"), timeout_s=5))
    await watch(scaler, 0.0, 30.0)
    assert "401" in scaler.status()["error"]
    with pytest.raises(RolloutApiError, match="Connect"):
        await RolloutApi("http://127.0.0.1:9/rollout", TOKEN, timeout_s=5).fleet("default")
    with pytest.raises(RolloutApiError, match=r"no engines of model 'judge'; models: default"):
        await RolloutApi(f"{site.url}/rollout", TOKEN, timeout_s=5).fleet("judge")


async def test_both_rhythms(site: Site) -> None:
    scaler = autoscaler(
        site, collect_interval=0.02, decide_interval=0.05, scale_out={"token_usage_duration": 0.05, "cooldown": 60}
    )
    loop = asyncio.create_task(scaler.run())
    async with asyncio.timeout(10):
        while not site.calls:
            await asyncio.sleep(0.02)
    loop.cancel()
    assert site.calls[0][1]["num_replicas"] == 4


async def test_the_api(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relax_engine.access.policy._installed", None)
    policy = new_policy(RunConfig().flat)
    install(policy)
    assert policy.api_token is not None
    scaler = autoscaler(site)
    await watch(scaler, 0.0, 30.0)
    ended: list[str] = []
    client = TestClient(autoscaler_api(lambda: scaler, lambda: ended[0] if ended else None))
    assert client.get("/status").status_code == client.post("/enable").status_code == 401
    assert client.get("/health").json() == {"status": "ok"}
    client.headers["Authorization"] = f"Bearer {policy.api_token.get_secret_value()}"
    status = client.get("/status").json()
    assert (status["enabled"], status["engines"], status["token_usage"]) == (True, 1, 0.95)
    assert status["last_decision"] == {
        "action": "scale_out", "engines": 1, "target": 4, "reason": "token_usage 0.95 (bound 0.85)"
    }  # fmt: skip
    found = {(one["direction"], one["name"]): one for one in client.get("/conditions").json()["conditions"]}
    assert len(found) == 9
    assert found["scale_out", "token_usage"] == {
        "direction": "scale_out", "name": "token_usage", "value": 0.95, "bound": 0.85, "holds": True
    }  # fmt: skip
    assert client.get("/scale_history").json()["total_count"] == 1
    assert client.get("/scale_history?limit=0").status_code == 422
    assert client.post("/enable", json={"enabled": "perhaps"}).status_code == 422
    assert client.post("/enable", json={"enable": True}).status_code == 422
    assert client.post("/enable", json={"enabled": False}).json() == {"enabled": False}
    assert scaler.enabled is False
    shown = render({"status": status, **client.get("/conditions").json(), **client.get("/scale_history").json()})
    assert "acts, model default" in shown
    assert "x token_usage                 0.95  bound 0.85" in shown
    assert "requested   scale_out 1 -> 4  token_usage 0.95 (bound 0.85) accepted" in shown
    ended.append("a reason")
    assert client.get("/health").status_code == 503
