"""The run's APIs from outside, the rollout's above all: which engines there are, and how many there should be."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import SecretStr

from relax_engine.errors import RelaxError
from relax_engine.utils.redact import redact

_GOING = ("draining", "removing", "dead")
_COMING = ("starting", "joining")


class RolloutApiError(RelaxError):
    """The rollout did not answer, or refused; `status` is the HTTP status, None without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of one model."""

    serving: tuple[str, ...]
    """URLs of the engines that get requests."""
    engines: int
    """Those that are there or on their way in."""
    initial: int
    """Those that the run started with."""
    changing: bool
    """Whether any is on its way in or out."""


class RolloutApi:
    """Calls `url` (`http://host:8000/rollout`) with the run's token; every call has a deadline."""

    def __init__(
        self, url: str, token: SecretStr | None, *, timeout_s: float, tls: ssl.SSLContext | bool = True
    ) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
        self._tls = tls

    async def fleet(self, model_name: str) -> Fleet:
        """GET /engines.

        Raises:
            RolloutApiError: no answer, or no such model.
        """
        answer = await self.get("/engines")
        try:
            groups = answer["models"][model_name]["engine_groups"]
            engines = [engine for group in groups for engine in group["engines"]]
            status = [str(engine["status"]).lower() for engine in engines]
            initial = sum(engine.get("origin") == "initial" for engine in engines)
            serving = tuple(e["url"] for e, s in zip(engines, status, strict=True) if s == "active")
        except (KeyError, TypeError) as error:
            known = ", ".join(answer.get("models", {})) if isinstance(answer, Mapping) else ""
            raise RolloutApiError(
                f"{self.url}/engines has no engines of model {model_name!r}; models: {known}"
            ) from error
        return Fleet(
            serving,
            engines=sum(one not in _GOING for one in status),
            initial=initial,
            changing=any(one in _COMING or (one in _GOING and one != "dead") for one in status),
        )

    async def scale(self, path: str, model_name: str, target: int) -> Mapping[str, Any]:
        """POST /scale_out or /scale_in with an absolute target, so that a call that arrives twice does no harm.

        Raises:
            RolloutApiError: no answer, or refused.
        """
        return await self.post(path, {"model_name": model_name, "num_replicas": target})

    async def get(self, path: str) -> Mapping[str, Any]:
        """GET a path below the API's URL.

        Raises:
            RolloutApiError: no answer, or refused.
        """
        answer: Mapping[str, Any] = await self._call("GET", path)
        return answer

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST to a path below the API's URL.

        Raises:
            RolloutApiError: no answer, or refused.
        """
        answer: Mapping[str, Any] = await self._call("POST", path, body)
        return answer

    async def metrics(self, engine_url: str) -> str:
        """GET /metrics of an engine, which needs no token.

        Raises:
            RolloutApiError: no answer.
        """
        return str(await self._request("GET", f"{engine_url.rstrip('/')}/metrics", None, {}))

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        text = await self._request(method, self.url + path, body, self._headers)
        try:
            return json.loads(text)
        except ValueError as error:
            raise RolloutApiError(f"{self.url}{path} did not answer in JSON: {text[:100]!r}") from error

    async def _request(self, method: str, url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> str:
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.request(method, url, json=body, ssl=self._tls, allow_redirects=False) as answer,
            ):
                text = await answer.text()
                if answer.status >= 300:
                    raise RolloutApiError(f"{url} answered {answer.status}: {redact(text[:500])}", answer.status)
                return text
        except TimeoutError as error:
            raise RolloutApiError(f"{url} did not answer within {self.timeout_s:g} s") from error
        except aiohttp.ClientError as error:
            raise RolloutApiError(f"{url}: {type(error).__name__}: {error}") from error
