"""Asking a server for something in JSON, again if need be.

What lives here: one POST with bounded retries. What does not: what is asked (`remote_rm`, `genrm`), how many calls run
at one time, and the deadline of all tries together (`executor`).
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

TRIES = 4
TRY_SECONDS = 30.0
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0
ERROR_CHARACTERS = 200
AGAIN = frozenset({408, 425, 429})


class HttpError(RuntimeError):
    """The server refused, or could not be reached however often."""


async def post_json(
    url: str,
    payload: Any,
    *,
    tries: int = TRIES,
    try_s: float = TRY_SECONDS,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | bool = True,
) -> Any:
    """The JSON that the server answers `payload` with.

    Errors of transport, no answer within `try_s`, 5xx, 408, 425 and 429 are tried again, up to `tries` times in all,
    after a pause of about 0.25 s that doubles and is jittered by half. Other 4xx and answers that are no JSON are
    final. `tls` is what the server's certificate is checked with.

    Raises:
        HttpError: names the address, the number of tries and the last failure.
    """
    failure = ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=try_s)) as session:
        for attempt in range(tries):
            if attempt:
                pause = min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            try:
                async with session.post(url, json=payload, headers=headers, ssl=tls) as response:
                    text = await response.text()
                    if response.status < 300:
                        return _parse(url, text)
                    failure = f"{response.status}: {text[:ERROR_CHARACTERS]}"
                    if response.status < 500 and response.status not in AGAIN:
                        raise HttpError(f"{url} answered {failure}")
            except (aiohttp.ClientError, TimeoutError) as error:
                failure = f"{type(error).__name__}: {error}"
    raise HttpError(f"{url} failed {tries} times, last with {failure}")


def _parse(url: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise HttpError(f"{url} answered no JSON: {text[:ERROR_CHARACTERS]!r}") from error
