"""The client of an engine: SGLang's HTTP API, nothing else, whichever server is behind it.

Every call has a deadline. Calls that may run twice without harm are retried, a bounded number of times
with jitter, when the transport fails; an answer, good or bad, is never retried. Connections are not
kept unless asked for: servers close idle ones after seconds, and the next request on such a connection is lost.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import numpy as np
from numpy.typing import NDArray
from pydantic import SecretStr

from relax_engine.access.policy import engine_key
from relax_engine.backends.engines.types import (
    EngineDeadlineError,
    EngineRefusedError,
    EngineUnreachableError,
    GenerateOutput,
)
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress

_ATTEMPTS = 4
_BACKOFF_S = 0.1
_BAD_REQUEST = 400

__all__ = ["EngineClient", "GenerateOutput"]


class EngineClient:
    """Calls one engine at `url`; usable as an async context manager, or closed with `close`.

    Every method raises `EngineRefusedError` (error status), `EngineUnreachableError` (transport) or
    `EngineDeadlineError` (no answer within `timeout_s` seconds, `deadline_s` where a method takes it).
    """

    def __init__(
        self, url: str, *, timeout_s: float = 600.0, idle_s: float = 0.0, api_key: SecretStr | None = None
    ) -> None:
        """A client that has not connected yet.

        Args:
            url: Where the engine answers.
            timeout_s: Deadline of a call, in seconds.
            idle_s: Keeps a connection for a next call within so many seconds, less than servers keep theirs.
            api_key: Bearer token; default the run's (`access.policy`), where this process has one.
        """
        self.url = url.rstrip("/")
        self._api_key = api_key or engine_key()
        self.timeout_s = timeout_s
        self.idle_s = idle_s
        self._session: aiohttp.ClientSession | None = None
        self._generating: Counter[str] = Counter()
        self._answered = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- generation --------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: Sequence[int],
        sampling_params: Mapping[str, Any],
        *,
        rid: str | None = None,
        media: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
    ) -> GenerateOutput:
        """One response to one prompt of token ids, whose `media` are those of `Sample.multimodal_inputs`."""
        body: dict[str, Any] = {"input_ids": list(prompt), "sampling_params": dict(sampling_params)}
        body |= {"return_logprob": True} | {f"{kind}_data": items for kind, items in (media or {}).items() if items}
        with self._in_flight([rid] if rid else []):
            data = await self._call("/generate", {**body, **({"rid": rid} if rid else {})}, deadline_s=deadline_s)
        return GenerateOutput.from_json(data)

    async def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        rids: Sequence[str] | None = None,
        media: Sequence[Mapping[str, Any] | None] = (),
        deadline_s: float | None = None,
        routed_experts: bool = False,
    ) -> list[GenerateOutput]:
        """Responses in order, `n` per prompt; the batch is admitted together, so the result is reproducible.

        `routed_experts` asks for the experts that tokens were sent to (`--enable-return-routed-experts` of the server).
        `media` are each prompt's `Sample.multimodal_inputs`, or empty.
        """
        if not prompts:
            return []
        params = dict(sampling_params) if isinstance(sampling_params, Mapping) else [dict(p) for p in sampling_params]
        body: dict[str, Any] = {
            "input_ids": [list(prompt) for prompt in prompts],
            "sampling_params": params,
            "return_logprob": True,
        }
        if routed_experts:
            body["return_routed_experts"] = True
        for kind in {kind: None for each in media for kind in each or ()}:
            body[f"{kind}_data"] = [(each or {}).get(kind) or None for each in media]
        if rids is not None:
            body["rid"] = list(rids)
        with self._in_flight(rids or ()):
            data = await self._call("/generate", body, deadline_s=deadline_s)
        return [GenerateOutput.from_json(item) for item in data]

    async def score(
        self, sequences: Sequence[Sequence[int]], *, deadline_s: float | None = None
    ) -> list[NDArray[np.float32]]:
        """Log-probs (temperature 1) of every token but the first of each sequence, float32 `[length - 1]`."""
        if not sequences:
            return []
        body = {
            "input_ids": [list(sequence) for sequence in sequences],
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        data = await self._call("/generate", body, deadline_s=deadline_s)
        return [GenerateOutput.from_json(item).input_log_probs for item in data]

    async def score_responses(
        self, sequences: Sequence[Sequence[int]], responses: Sequence[int], *, top: int = 0
    ) -> list[GenerateOutput]:
        """Log-probs (temperature 1) of the last `responses[i]` tokens of each sequence, in `input_log_probs`.

        Args:
            sequences: prompt and response, with at least one prompt token.
            responses: tokens of each response, 1 or more.
            top: also return that many of the likeliest tokens in the place of each, in `input_top_ids` and
                `input_top_log_probs`.
        """
        if not sequences:
            return []
        body = {
            "input_ids": [list(sequence) for sequence in sequences],
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": [len(row) - count for row, count in zip(sequences, responses, strict=True)],
        }
        if top:
            body["top_logprobs_num"] = top
        data = await self._call("/generate", body, deadline_s=None)
        return [GenerateOutput.from_json(item) for item in data]

    async def abort(self, rid: str | None = None) -> None:
        """Abort this client's requests whose id starts with `rid`, or all of the engine; they return what they have."""
        if rid is None:
            await self._call("/abort_request", {"abort_all": True}, retry=True)
            return
        # SGLang knows requests by their whole id only.
        mine = [name for name in self._generating if name.startswith(rid)]
        await asyncio.gather(*(self._call("/abort_request", {"rid": name}, retry=True) for name in mine))

    @contextlib.contextmanager
    def _in_flight(self, rids: Sequence[str]) -> Iterator[None]:
        self._generating.update(rids)
        try:
            yield
        finally:
            self._generating -= Counter(rids)
            self._answered.set()

    async def answered(self, rid: str) -> None:
        """Return when no request whose id starts with `rid` waits for its answer; the deadline is the caller's."""
        while any(name.startswith(rid) for name in self._generating):
            self._answered.clear()
            await self._answered.wait()

    async def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None:
        """Stop generating; what happens to requests in flight is the mode's."""
        await self._call("/pause_generation", {"mode": mode}, retry=True)

    async def resume(self) -> None:
        """Continue generating after `pause`."""
        await self._call("/continue_generation", {}, retry=True)

    async def flush_cache(self) -> None:
        """Forget cached prefixes."""
        await self._call("/flush_cache", {}, retry=True)

    async def release_memory(self, tags: Sequence[str] | None = None) -> None:
        """Give cache and weight memory back; the engine must be idle."""
        await self._call("/release_memory_occupation", {"tags": list(tags)} if tags else {}, retry=True)

    async def resume_memory(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again."""
        await self._call("/resume_memory_occupation", {"tags": list(tags)} if tags else {}, retry=True)

    # -- weights -----------------------------------------------------------------------------------

    async def init_weights_group(self, address: GroupAddress, rank: int) -> None:
        """Let the engine join an update group; returns when the group is complete."""
        body = {
            "master_address": address.host,
            "master_port": address.port,
            "rank_offset": rank,
            "world_size": address.world_size,
            "group_name": address.name,
            "backend": address.backend,
        }
        await self._call("/init_weights_update_group", body)

    async def destroy_weights_group(self, name: str) -> None:
        """Let the engine leave an update group."""
        await self._call("/destroy_weights_update_group", {"group_name": name})

    async def begin_weight_update(self) -> str:
        """Open a weight update, dropping one that is open.

        Returns the digest of the weights that the engine holds, empty where it has none, and always with SGLang.
        """
        try:
            answer = await self._call("/begin_weight_update", {}, retry=True)
        except EngineRefusedError as error:
            if error.status != _BAD_REQUEST:
                raise
            # SGLang wants the one before ended, which leaves a mixture of weights until this one has ended.
            await self._call("/end_weight_update", {})
            answer = await self._call("/begin_weight_update", {}, retry=True)
        return str(answer.get("base", ""))

    async def update_weights_from_distributed(
        self, bucket: BucketMeta, group_name: str, *, version: int | str | None = None, flush_cache: bool = True
    ) -> None:
        """Let the engine receive one flattened bucket that rank 0 of the group broadcasts meanwhile."""
        body: dict[str, Any] = {
            "names": [tensor.name for tensor in bucket.tensors],
            "dtypes": [tensor.dtype for tensor in bucket.tensors],
            "shapes": [list(tensor.shape) for tensor in bucket.tensors],
            "group_name": group_name,
            "flush_cache": flush_cache,
            "load_format": "flattened_bucket",
            "checksum": bucket.checksum,
        }
        if bucket.encoded_nbytes is not None:
            body["encoded_nbytes"] = bucket.encoded_nbytes
        if version is not None:
            body["weight_version"] = str(version)
        await self._call("/update_weights_from_distributed", body)

    async def update_weights_from_tensor(
        self, bucket: BucketMeta, handles: Sequence[bytes], *, flush_cache: bool = True
    ) -> None:
        """Let the engine copy tensors out of shared memory; one entry of `handles` for each of its processes."""
        body: dict[str, Any] = {
            "serialized_named_tensors": [base64.b64encode(handle).decode() for handle in handles],
            "flush_cache": flush_cache,
            "checksum": bucket.checksum,
        }
        await self._call("/update_weights_from_tensor", body)

    async def end_weight_update(self, version: int | str) -> None:
        """Adopt the received weights as `version`."""
        answer = await self._call("/end_weight_update", {"weight_version": str(version)})
        if str(answer.get("weight_version")) != str(version):
            # SGLang names versions in a call of its own.
            body = {"new_version": str(version), "abort_all_requests": False}
            await self._call("/update_weight_version", body, retry=True)

    async def update_weights_from_disk(
        self, model_path: str, *, version: int | str | None = None, flush_cache: bool = True
    ) -> None:
        """Load a model directory that the engine can read."""
        body: dict[str, Any] = {"model_path": model_path, "flush_cache": flush_cache}
        if version is not None:
            body["weight_version"] = str(version)
        await self._call("/update_weights_from_disk", body)

    async def weights_checksum(self) -> str:
        """Checksum over all parameters in the order of their names."""
        return str((await self._call("/weights_checker", {"action": "checksum"}, retry=True))["checksum"])

    # -- information -------------------------------------------------------------------------------

    async def health(self, *, generate: bool = False, deadline_s: float = 5.0) -> None:
        """Raise unless the engine is healthy; `generate` asks for a token too."""
        endpoint = "/health_generate" if generate else "/health"
        await self._call(endpoint, None, deadline_s=deadline_s)

    async def model_info(self) -> dict[str, Any]:
        """Model path and weight version."""
        return dict(await self._call("/model_info", None, retry=True))

    async def server_info(self) -> dict[str, Any]:
        """The server's settings and state."""
        return dict(await self._call("/server_info", None, retry=True))

    async def loads(self) -> list[dict[str, Any]]:
        """Running and waiting requests, per data-parallel rank."""
        return list((await self._call("/v1/loads", None, retry=True))["loads"])

    async def metrics(self) -> str:
        """Prometheus text."""
        return str(await self._call("/metrics", None, retry=True))

    # -- transport ---------------------------------------------------------------------------------

    async def _call(
        self, endpoint: str, body: Mapping[str, Any] | None, *, deadline_s: float | None = None, retry: bool = False
    ) -> Any:
        """POST `body` (GET when None) and return the decoded answer."""
        limit = self.timeout_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(limit):
                for attempt in range(_ATTEMPTS if retry else 1):
                    if attempt:
                        await asyncio.sleep(_BACKOFF_S * 2**attempt * random.uniform(0.5, 1.5))
                    try:
                        return await self._once(endpoint, body)
                    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
                        failure = error
                raise EngineUnreachableError(f"{self.url}{endpoint}: {failure!r}") from failure
        except TimeoutError as error:
            raise EngineDeadlineError(f"{self.url}{endpoint} did not answer within {limit:g} s") from error

    async def _once(self, endpoint: str, body: Mapping[str, Any] | None) -> Any:
        if self._session is None:
            # The deadline is asyncio.timeout's, over all attempts.
            keeping = {"keepalive_timeout": self.idle_s} if self.idle_s else {"force_close": True}
            key = self._api_key
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, **keeping),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"},
            )
        method = "GET" if body is None else "POST"
        # A redirect would lead to where nobody checked that engines may be.
        async with self._session.request(method, self.url + endpoint, json=body, allow_redirects=False) as response:
            text = await response.text()
            if response.status >= 300:
                raise EngineRefusedError(self.url, endpoint, response.status, _message(text))
            if response.content_type != "application/json":
                return text
            return json.loads(text)


def _message(text: str) -> str:
    """The error message inside an answer, or its beginning."""
    try:
        data = json.loads(text)
    except ValueError:
        return text[:500]
    if isinstance(data, Mapping):
        error = data.get("error")
        message = (
            error.get("message") if isinstance(error, Mapping) else data.get("message") or error or data.get("detail")
        )
        if message:
            return str(message)
    return text[:500]
