"""The HTTP server that agents talk to: three chat protocols over the sessions that are open.

It listens on the machine of the rollout role, where the agents run. A session's id is its key: `Authorization: Bearer`
or `x-api-key`. What lives here: routes, keys and streams. What does not: what the protocols say, and answering
(`session`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from aiohttp import web

from relax_engine.backends.engines.types import EngineCallError
from relax_engine.rollout.agents import anthropic, chat, responses
from relax_engine.rollout.agents.messages import Answer, RequestError, TurnRequest
from relax_engine.rollout.agents.session import Session
from relax_engine.rollout.pool import RolloutError

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 15.0
_SHUTDOWN_S = 2.0
_MAX_BODY_BYTES = 64 << 20


class ChatProtocol(Protocol):
    """A module that reads and writes one protocol."""

    HEARTBEAT: bytes

    def read_request(self, body: Mapping[str, Any]) -> TurnRequest:
        """The request of a body."""

    def write_answer(self, answer: Answer, request: TurnRequest, name: str) -> dict[str, Any]:
        """The body of an answer."""

    def write_stream(self, answer: Answer, request: TurnRequest, name: str) -> Iterator[bytes]:
        """The events of an answer."""

    def write_error(self, error: RequestError) -> dict[str, Any]:
        """The body of an error."""

    def stream_error(self, error: RequestError) -> Iterator[bytes]:
        """The events of an error."""


_ROUTES: Mapping[str, ChatProtocol] = {"chat/completions": chat, "responses": responses, "messages": anthropic}


class Gateway:
    """Serves open sessions. Client libraries append their route to a base URL that ends in `/v1`, or to one that does
    not; both are answered."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.url = ""
        """Where it answers, once started."""
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for prefix in ("/v1", "/v1/v1"):
            for route, protocol in _ROUTES.items():
                app.router.add_post(f"{prefix}/{route}", _handler(self, protocol))
            app.router.add_get(f"{prefix}/models", _models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0, backlog=1024)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://{host}:{port}"

    def open(self, session: Session) -> str:
        """Serve a session; returns its key."""
        key = uuid.uuid4().hex
        self.sessions[key] = session
        return key

    def close_session(self, key: str) -> None:
        """Serve it no longer. Idempotent."""
        self.sessions.pop(key, None)

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def session_of(self, headers: Mapping[str, str]) -> Session:
        """The session that a request's headers name.

        Raises:
            RequestError: none that is open.
        """
        key = headers.get("Authorization", "").removeprefix("Bearer ").strip() or headers.get("x-api-key", "")
        session = self.sessions.get(key)
        if session is None:
            raise RequestError("no open session has this key; use RELAX_SESSION_ID", status=401, code="invalid_api_key")
        return session


def _handler(gateway: Gateway, protocol: ChatProtocol) -> Any:
    async def handle(http: web.Request) -> web.StreamResponse:
        try:
            session = gateway.session_of(http.headers)
            request = _read(protocol, await _body(http))
        except RequestError as error:
            return web.json_response(protocol.write_error(error), status=error.status)
        task = asyncio.create_task(_answer(session, request))
        try:
            if request.stream:
                return await _stream(http, protocol, session, request, task)
            answer = await asyncio.shield(task)
        except RequestError as error:
            return web.json_response(protocol.write_error(error), status=error.status)
        if http.transport is None or http.transport.is_closing():
            session.keep(request, answer)
        return web.json_response(protocol.write_answer(answer, request, uuid.uuid4().hex))

    return handle


async def _answer(session: Session, request: TurnRequest) -> Answer:
    """The session's answer; engines that are lost are an error that the client may retry."""
    try:
        return await session.answer(request)
    except (EngineCallError, RolloutError) as error:
        logger.warning("a session's request failed: %s", error)
        raise RequestError(f"the policy cannot answer: {error}", status=503, code="engine_error") from error


def _read(protocol: ChatProtocol, body: Mapping[str, Any]) -> TurnRequest:
    try:
        return protocol.read_request(body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RequestError(f"the body is malformed: {type(error).__name__}: {error}") from error


async def _body(http: web.Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await http.text())
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    return body


async def _stream(
    http: web.Request, protocol: ChatProtocol, session: Session, request: TurnRequest, task: asyncio.Task[Answer]
) -> web.StreamResponse:
    """Events of the answer, once it is complete; until then something that keeps the connection open."""
    done, _ = await asyncio.wait({task}, timeout=_HEARTBEAT_S)
    if done:
        task.result()  # an error is an answer of its own while nothing was sent
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await stream.prepare(http)
    with contextlib.suppress(ConnectionError):
        while not task.done():
            await stream.write(protocol.HEARTBEAT)
            await asyncio.wait({task}, timeout=_HEARTBEAT_S)
    try:
        answer = await task
    except RequestError as error:
        events = protocol.stream_error(error)
    else:
        if http.transport is None or http.transport.is_closing():
            session.keep(request, answer)
        events = protocol.write_stream(answer, request, uuid.uuid4().hex)
    with contextlib.suppress(ConnectionError):
        for event in events:
            await stream.write(event)
        await stream.write_eof()
    return stream


async def _models(http: web.Request) -> web.Response:
    model = {"id": "policy", "object": "model", "created": 0, "owned_by": "relax"}
    return web.json_response({"object": "list", "data": [model]})
