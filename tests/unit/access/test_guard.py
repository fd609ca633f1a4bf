"""Requests that an API must refuse, each with its status and a JSON error, and those that it must not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, SecretStr
from starlette.websockets import WebSocketDisconnect

from relax_engine.access.guard import AccessGuard
from relax_engine.access.policy import install, installed, new_policy
from relax_engine.config import RunConfig

TOKEN = "t0ken-" + "x" * 32
LIMIT = 2000
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


class Body(BaseModel):
    num_replicas: int


def client(token: str | None = TOKEN, root_path: str = "") -> TestClient:
    app = FastAPI(docs_url=None, redoc_url=None)
    secret = None if token is None else SecretStr(token)
    app.add_middleware(AccessGuard, token=lambda: secret, open_paths=("/health",), limit=lambda: LIMIT)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/scale_out")
    def scale_out(body: Body) -> dict[str, int]:
        return {"num_replicas": body.num_replicas}

    return TestClient(app, root_path=root_path, raise_server_exceptions=False)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"X-Api-Key": TOKEN},
    ],
)
@pytest.mark.parametrize("path", ["/scale_out", "/openapi.json", "/no_such_path", "/health/", "/healthx", "//health"])
def test_without_the_token(headers: dict[str, str], path: str) -> None:
    answer = client().post(path, headers=headers, json={"num_replicas": 2})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "bearer token is needed" in answer.json()["detail"]
    assert TOKEN not in answer.text


def test_with_the_token() -> None:
    answer = client().post("/scale_out", headers=AUTHORIZED, json={"num_replicas": 2})
    assert (answer.status_code, answer.json()) == (200, {"num_replicas": 2})
    assert (
        client().post("/scale_out", headers={"authorization": f"bearer {TOKEN}"}, json={"num_replicas": 2}).is_success
    )


@pytest.mark.parametrize("root_path", ["", "/rollout"])
def test_health_is_open_wherever_the_application_is_mounted(root_path: str) -> None:
    assert client(root_path=root_path).get(f"{root_path}/health").json() == {"status": "ok"}
    assert client(root_path=root_path).get(f"{root_path}/scale_out").status_code == 401


def test_a_run_may_be_open() -> None:
    assert client(token=None).post("/scale_out", json={"num_replicas": 2}).status_code == 200


def chunks(size: int) -> Iterator[bytes]:
    yield b'{"num_replicas": 2, "padding": "'
    for _ in range(size // 100):
        yield b"x" * 100
    yield b'"}'


def test_an_oversized_body_is_refused_by_its_announced_length() -> None:
    answer = client().post("/scale_out", headers=AUTHORIZED, content=b"x" * (LIMIT + 1))
    assert (answer.status_code, answer.json()) == (
        413,
        {"detail": "the body is larger than 2000 bytes (--api-max-body-bytes)"},
    )


def test_an_oversized_body_is_refused_in_chunks() -> None:
    headers = {**AUTHORIZED, "Content-Type": "application/json"}
    assert client().post("/scale_out", headers=headers, content=chunks(LIMIT - 100)).status_code == 200
    answer = client().post("/scale_out", headers=headers, content=chunks(LIMIT + 100))
    assert (answer.status_code, answer.json()["detail"][:23]) == (413, "the body is larger than")


def test_without_the_token_a_large_body_is_not_looked_at() -> None:
    assert client().post("/scale_out", content=chunks(LIMIT + 100)).status_code == 401


@pytest.mark.parametrize("body", ["{", '{"num_replicas": "many"}', "[]", "{}"])
def test_wrong_types(body: str) -> None:
    answer = client().post("/scale_out", headers={**AUTHORIZED, "Content-Type": "application/json"}, content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["msg"]


def test_websockets_are_refused() -> None:
    with pytest.raises(WebSocketDisconnect), client().websocket_connect("/scale_out", headers=AUTHORIZED):
        pass


def test_policies_of_two_runs_have_nothing_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAX_ENGINE_API_KEY", raising=False)
    first, second = new_policy(RunConfig().flat), new_policy(RunConfig().flat)
    secrets = [policy.api_token for policy in (first, second)] + [policy.engine_key for policy in (first, second)]
    values = {secret.get_secret_value() for secret in secrets if secret is not None}
    assert len(values) == 4
    assert min(map(len, values)) >= 43  # 32 random bytes
    assert not any(value in repr(first) + str(second) for value in values)


def test_where_the_key_of_engines_comes_from_and_that_nobody_is_served_without_a_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relax_engine.access.policy._installed", None)  # and back afterwards
    with pytest.raises(RuntimeError, match="no access policy"):
        installed()
    monkeypatch.setenv("RELAX_ENGINE_API_KEY", "from-environment")
    assert new_policy(RunConfig().flat).engine_key == SecretStr("from-environment")
    own = RunConfig.from_flat(custom_generate_function_path="mine.py:generate")
    assert new_policy(own.flat).engine_key == SecretStr("from-environment")
    monkeypatch.delenv("RELAX_ENGINE_API_KEY")
    assert new_policy(own.flat).engine_key is None  # the function may send requests of its own
    given = RunConfig.from_flat(sglang_api_key="from-flag", api_auth=False)
    policy = new_policy(given.flat)
    assert (policy.api_token, policy.engine_key) == (None, SecretStr("from-flag"))
    install(policy)
    assert installed() is policy
