"""The guard in front of an HTTP API: bearer token and size limit, as ASGI middleware.

What lives here: refusing requests before they reach a handler. What does not: what handlers themselves refuse.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Collection
from typing import Any

from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class AccessGuard:
    """Passes requests on that bring `Authorization: Bearer <token>` and are not too large.

    401 without the token, with a `WWW-Authenticate` header and nothing about what is wrong with what was sent; 413 for
    a body over `limit()` bytes, also one that comes in chunks without saying its length. Both answers are JSON,
    `{"detail": "..."}`. `open_paths` need no token; WebSockets are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: Callable[[], SecretStr | None],
        open_paths: Collection[str],
        limit: Callable[[], int] | None = None,
    ) -> None:
        self._app = app
        self._token = token
        self._open_paths = frozenset(open_paths)
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not self._open(scope) and not self._authorized(headers.get(b"authorization", b"")):
            message = "a bearer token is needed: `Authorization: Bearer <token>`, from api_token in the run directory"
            await _answer(send, 401, message, [(b"www-authenticate", b"Bearer")])
            return
        if self._limit is not None:
            limit = self._limit()
            length = headers.get(b"content-length", b"")
            if length.isdigit() and int(length) > limit:
                await _answer(send, 413, too_large(limit), [(b"connection", b"close")])
                return
            receive = _limited(receive, limit)
        await self._app(scope, receive, send)

    def _open(self, scope: Scope) -> bool:
        return _route(scope) in self._open_paths

    def _authorized(self, header: bytes) -> bool:
        token = self._token()
        if token is None:
            return True
        scheme, _, given = header.partition(b" ")
        # The comparison takes the same time wherever the first wrong byte is.
        right = hmac.compare_digest(given.strip(), token.get_secret_value().encode())
        return right and scheme.lower() == b"bearer"


def too_large(limit: int) -> str:
    """The message of a 413."""
    return f"the body is larger than {limit} bytes (--api-max-body-bytes)"


def _route(scope: Scope) -> str:
    """The path below the point where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def _limited(receive: Receive, limit: int) -> Receive:
    """`receive`, with an error once more than `limit` bytes of body came; the framework answers it with a 413."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, too_large(limit), headers={"connection": "close"})
        return message

    return counted


async def _answer(send: Send, status: int, message: str, headers: list[tuple[bytes, bytes]]) -> None:
    body = json.dumps({"detail": message}).encode()
    start: dict[str, Any] = {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
