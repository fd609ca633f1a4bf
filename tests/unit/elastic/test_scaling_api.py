"""The scaling API: documented statuses, JSON errors, and an OpenAPI document that is the current one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from engine_room import EngineRoom
from fastapi import FastAPI

from relax_engine.cli import elastic
from relax_engine.components.rollout_api import openapi_document
from relax_engine.elastic.api import Elasticity, add_scaling
from relax_engine.elastic.autoscaler.rollout_api import RolloutApiError
from relax_engine.utils.network import free_port

ROOT = Path(__file__).parents[3]
Call = Callable[..., Any]


class Served:
    """The API of a room over real HTTP; `elasticity` may be exchanged."""

    def __init__(self, room: EngineRoom) -> None:
        self.room = room
        self.url = ""
        self.elasticity = Elasticity({"default": room.scaler})

    async def __call__(self, method: str, path: str, body: Any = None, data: bytes | None = None) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, json=body, data=data) as answer,
        ):
            assert answer.content_type == "application/json"
            return answer.status, await answer.json()


@pytest.fixture
async def api() -> AsyncIterator[Served]:
    served = Served(EngineRoom())
    app = FastAPI()
    add_scaling(app, lambda: served.elasticity)
    port = free_port("127.0.0.1")
    served.url = f"http://127.0.0.1:{port}"
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", lifespan="off"))
    task = asyncio.create_task(server._serve())
    await served.room.until(lambda: server.started)
    yield served
    server.should_exit = True
    await task
    await served.room.close()


async def test_out_and_in_again(api: Served) -> None:
    status, answer = await api("POST", "/scale_out", {"num_replicas": 3})
    assert (status, answer["status"]) == (200, "PENDING")
    assert (await api("POST", "/scale_out", {"num_replicas": 3}))[1]["request_id"] == answer["request_id"]
    await api.room.grown(api.room.scaler.ledger.scale_out(answer["request_id"]))
    _, state = await api("GET", f"/scale_out/{answer['request_id']}")
    assert state["status"] == "ACTIVE"
    assert state["engine_ids"] == ["http://added-1", "http://added-2"]
    assert (state["weight_version"], state["failure_categories"], state["error_message"]) == (8, {}, None)
    assert (await api("POST", "/scale_out", {"num_replicas": 3}))[1]["status"] == "NOOP"
    _, engines = await api("GET", "/engines")
    assert engines["total_engines"] == 3
    groups = engines["models"]["default"]["engine_groups"]
    assert [(g["origin"], [e["rank"] for e in g["engines"]]) for g in groups] == [
        ("initial", [0]),
        ("ray_native", [1, 2]),
    ]
    assert {engine["status"] for group in groups for engine in group["engines"]} == {"active"}
    status, would = await api("POST", "/scale_in", {"num_replicas": 2, "dry_run": True})
    assert (would["request_id"], would["selected_engines"]) == ("", ["http://added-2"])
    status, answer = await api("POST", "/scale_in", {"engine_urls": ["http://added-1"], "force": True})
    await api.room.scaled(api.room.scaler.ledger.scale_in(answer["request_id"]))
    _, state = await api("GET", f"/scale_in/{answer['request_id']}")
    assert (state["status"], state["removed_engines"]) == ("COMPLETED", ["http://added-1"])
    _, found = await api("GET", "/scale_in?status=COMPLETED")
    assert [request["request_id"] for request in found["requests"]] == [answer["request_id"]]
    assert (await api("GET", "/scale_out?status=FAILED"))[1]["total_count"] == 0


async def test_cancels(api: Served) -> None:
    api.room.gate.clear()
    _, answer = await api("POST", "/scale_out", {"num_replicas": 3})
    request_id = answer["request_id"]
    _, would = await api("POST", "/scale_out_cancel", {"dry_run": True})
    assert (would["succeeded"], would["skipped"]) == ([request_id], {})
    status, other = await api("POST", "/scale_in", {"num_replicas": 1})
    assert (status, other["status"], other["request_id"]) == (409, "CONFLICT", request_id)
    status, _ = await api("POST", f"/scale_out/{request_id}/cancel")
    assert status == 200
    await api.room.until(lambda: api.room.scaler.ledger.running() is None)
    _, done = await api("POST", "/scale_out_cancel", {})
    assert (done["succeeded"], done["skipped"], done["total_count"]) == ([], {request_id: "it is CANCELLED"}, 1)


REFUSALS: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/scale_out", {}, 400, "names no target"),
    ("POST", "/scale_out", {"num_replicas": 2, "engine_urls": ["http://a"]}, 400, "exclude each other"),
    ("POST", "/scale_out", {"num_replicas": 0}, 400, "use /scale_in"),
    ("POST", "/scale_in", {}, 400, "names no target"),
    ("POST", "/scale_in", {"num_replicas": 0}, 400, "started with stay"),
    ("POST", "/scale_in", {"num_replicas": 2}, 400, "use /scale_out"),
    ("POST", "/scale_in", {"engine_urls": ["http://initial-0"]}, 400, "such engines stay"),
    ("POST", "/scale_out", {"model_name": "judge", "num_replicas": 2}, 404, "no model 'judge'"),
    ("GET", "/scale_out?model_name=judge", None, 404, "no model 'judge'"),
    ("GET", "/scale_out/abc", None, 404, "no scale-out request 'abc'"),
    ("GET", "/scale_in/abc", None, 404, "no scale-in request 'abc'"),
    ("POST", "/scale_out/abc/cancel", None, 404, "no scale-out request 'abc'"),
    ("POST", "/scale_out", {"num_replicas": "3"}, 422, "valid integer"),
    ("POST", "/scale_out", {"num_replicas": True}, 422, "valid integer"),
    ("POST", "/scale_out", {"num_replicas": -1}, 422, "greater than or equal to 0"),
    ("POST", "/scale_out", {"num_replicas": 10**6}, 422, "less than or equal to 4096"),
    ("POST", "/scale_out", {"num_replicas": 2, "timeout_secs": 0}, 422, "greater than 0"),
    ("POST", "/scale_out", {"num_replicas": 2, "replicas": 3}, 422, "Extra inputs"),
    ("POST", "/scale_out", {"engine_urls": "http://a"}, 422, "valid list"),
    ("POST", "/scale_out", {"engine_urls": ["x" * 3000]}, 422, "at most 2048"),
    ("POST", "/scale_out", [1], 422, "valid dictionary"),
    ("GET", "/scale_out?status=DONE", None, 422, "'PENDING'"),
    ("POST", "/scale_out_cancel", {"status_filter": "DONE"}, 422, "'PENDING'"),
    ("POST", "/scale_in", {"num_replicas": 1, "force": "perhaps"}, 422, "valid boolean"),
]


async def test_what_is_refused(api: Served) -> None:
    for method, path, body, status, words in REFUSALS:
        got, answer = await api(method, path, body)
        assert (got, words in json.dumps(answer)) == (status, True), (method, path, body, answer)
        assert "detail" in answer
    assert list(api.room.pool.engines) == ["http://initial-0"]
    assert (await api("GET", "/scale_out"))[1]["total_count"] == 0


async def test_the_command_line(api: Served, capsys: pytest.CaptureFixture[str]) -> None:
    async def relax(*argv: str) -> str:
        code = await asyncio.to_thread(elastic.main, [argv[0], "--url", api.url, *argv[1:]])
        assert code == 0
        return capsys.readouterr().out

    asked = asyncio.create_task(relax("scale-out", "--replicas", "2", "--json"))
    await api.room.until(lambda: api.room.scaler.ledger.running() is not None)
    request = api.room.scaler.ledger.scale_outs()[0]
    await api.room.grown(request)
    assert json.loads(await asked)["status"] == "ACTIVE"
    assert "http://added-1" in await relax("engines")
    assert request.request_id in await relax("status")
    assert "NOOP" in await relax("scale-in", "--replicas", "1", "--dry-run")
    with pytest.raises(RolloutApiError, match=r"answered 400: .*num_replicas is 0, and the 1 engines"):
        await relax("scale-in", "--replicas", "0")


async def test_malformed_bodies_a_fence_and_a_run_that_cannot_scale(api: Served) -> None:
    assert (await api("POST", "/scale_out", data=b"{num"))[0] == 422
    api.room.fence.close()
    object.__setattr__(api.room.scaler.settings, "fence_timeout_s", 0.01)
    status, answer = await api("POST", "/scale_in", {"num_replicas": 1})
    assert (status, answer["status"]) == (503, "BUSY")
    api.elasticity = Elasticity({"default": api.room.scaler}, "engines share devices")
    for path in ("/scale_out", "/scale_in"):
        status, answer = await api("POST", path, {"num_replicas": 2})
        assert (status, answer["detail"]) == (400, "this run cannot scale: engines share devices")
    assert (await api("GET", "/engines"))[0] == 200


def test_the_checked_in_document_is_current() -> None:
    checked_in = json.loads((ROOT / "docs" / "openapi" / "rollout.json").read_text())
    assert openapi_document() == checked_in  # made of the application as Serve has it, which it pickles
    assert {"/scale_out", "/scale_in", "/engines", "/health"} <= set(checked_in["paths"])
    responses = checked_in["paths"]["/scale_in"]["post"]["responses"]
    assert set(responses) == {"200", "400", "404", "409", "422", "500", "503"}
