"""SGLang's HTTP API over the embedded engine.

Handlers check and translate; the work is done by the engine's thread (`engine.py`) or, for weight transfers, by
a worker thread (`weight_update.py`). The event loop only waits, so that it does not compete with
the engine for the interpreter.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relax_engine.access.guard import AccessGuard
from relax_engine.backends.engines.local.engine import LocalEngine, PauseMode
from relax_engine.backends.engines.local.errors import BadRequestError, EngineError
from relax_engine.backends.engines.local.fields import Body
from relax_engine.backends.engines.local.generate_api import GenerateParser, has_media, render
from relax_engine.backends.engines.local.metrics import load_report, prometheus_text
from relax_engine.backends.engines.local.request import Batch, Request
from relax_engine.backends.engines.local.weight_sources import Arriving
from relax_engine.backends.engines.local.weight_update import WeightReceiver

logger = logging.getLogger(__name__)

_DISCONNECT_POLL_S = 1.0
_COMMAND_DEADLINE_S = 60.0
_HEALTH_DEADLINE_S = 20.0
_OPEN_PATHS = ("/health", "/health_generate", "/metrics")
_MEMORY_TAGS = {"kv_cache", "weights"}

Handler = Callable[[HttpRequest], Awaitable[Response]]


def build_app(engine: LocalEngine, receiver: WeightReceiver, api_key: SecretStr | None = None) -> ASGIApp:
    """The application; with `api_key`, what SGLang leaves open with `--api-key` is open here too."""
    server = EngineServer(engine, receiver)
    table: list[tuple[str, Handler, list[str]]] = [
        ("/generate", server.generate, ["POST", "PUT"]),
        ("/health", server.health, ["GET"]),
        ("/health_generate", server.health_generate, ["GET"]),
        ("/model_info", server.model_info, ["GET"]),
        ("/get_model_info", server.model_info, ["GET"]),
        ("/server_info", server.server_info, ["GET"]),
        ("/get_server_info", server.server_info, ["GET"]),
        ("/v1/loads", server.loads, ["GET"]),
        ("/metrics", server.metrics, ["GET"]),
        ("/flush_cache", server.flush_cache, ["GET", "POST"]),
        ("/abort_request", server.abort_request, ["POST"]),
        ("/pause_generation", server.pause_generation, ["POST"]),
        ("/continue_generation", server.continue_generation, ["POST"]),
        ("/release_memory_occupation", server.release_memory, ["GET", "POST"]),
        ("/resume_memory_occupation", server.resume_memory, ["GET", "POST"]),
        ("/init_weights_update_group", server.init_group, ["POST"]),
        ("/destroy_weights_update_group", server.destroy_group, ["POST"]),
        ("/begin_weight_update", server.begin_update, ["POST"]),
        ("/update_weights_from_distributed", server.update_from_distributed, ["POST"]),
        ("/update_weights_from_tensor", server.update_from_tensor, ["POST"]),
        ("/end_weight_update", server.end_update, ["POST"]),
        ("/update_weights_from_disk", server.update_from_disk, ["POST"]),
        ("/weights_checker", server.weights_checker, ["GET", "POST"]),
    ]
    app = Starlette(
        routes=[Route(path, handler, methods=methods) for path, handler, methods in table],
        exception_handlers={BadRequestError: _bad_request, EngineError: _engine_failed},
    )
    return app if api_key is None else AccessGuard(app, token=lambda: api_key, open_paths=_OPEN_PATHS)


async def _bad_request(_: HttpRequest, error: Exception) -> Response:
    return _failure(400, str(error))


async def _engine_failed(_: HttpRequest, error: Exception) -> Response:
    return _failure(500, str(error))


def _failure(status: int, message: str) -> Response:
    return JSONResponse({"success": False, "message": message, "error": {"message": message}}, status_code=status)


def _success(message: str, **extra: Any) -> Response:
    return JSONResponse({"success": True, "message": message, **extra})


class EngineServer:
    """One handler per endpoint."""

    def __init__(self, engine: LocalEngine, receiver: WeightReceiver) -> None:
        self.engine = engine
        self.parser = GenerateParser(engine)
        self.receiver = receiver
        self._generating = 0

    async def _command(self, command: Callable[[], Any]) -> Any:
        """Run `command` in the engine's thread, under a deadline."""
        future = asyncio.wrap_future(self.engine.call(command))
        try:
            return await asyncio.wait_for(future, _COMMAND_DEADLINE_S)
        except TimeoutError as error:
            raise EngineError(f"the engine did not take a command within {_COMMAND_DEADLINE_S:g} s") from error

    # -- generation --------------------------------------------------------------------------------

    async def generate(self, http: HttpRequest) -> Response:
        """POST /generate."""
        body = await _json(http)
        parse = self.parser.parse
        call = await asyncio.to_thread(parse, body) if has_media(body) else parse(body)
        if not await self._run(call.requests, http):
            return Response(status_code=499)
        return Response(render(call, self.engine), media_type="application/json")

    async def _run(self, requests: list[Request], http: HttpRequest | None) -> bool:
        """Wait until all `requests` finish; False when the client went away, which aborts them."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        mine = set(requests)

        def finished() -> None:
            loop.call_soon_threadsafe(done.set)

        batch = Batch(requests, finished)
        await self._command(lambda: self.engine.submit(batch))
        waiter = asyncio.create_task(done.wait())
        try:
            while not (await asyncio.wait({waiter}, timeout=_DISCONNECT_POLL_S))[0]:
                if self.engine.failure is not None:
                    raise EngineError(f"the engine has stopped: {self.engine.failure!r}")
                if http is not None and await http.is_disconnected():
                    await self._command(lambda: self.engine.scheduler.abort(mine.__contains__, "client disconnected"))
                    return False
        finally:
            waiter.cancel()
        return True

    async def abort_request(self, http: HttpRequest) -> Response:
        """POST /abort_request: `rid` (a prefix) or `abort_all`."""
        body = await _body(http)
        rid, everything = body.text("rid", ""), body.flag("abort_all", False)
        if not rid and not everything:
            raise BadRequestError("abort_request needs rid or abort_all=true")
        message = body.text("abort_message", "Aborted")
        count = await self._command(lambda: self.engine.abort(None if everything else rid, message))
        return _success(f"aborted {count} requests")

    async def pause_generation(self, http: HttpRequest) -> Response:
        """POST /pause_generation: `mode` abort, retract or in_place."""
        mode = (await _body(http)).text("mode", PauseMode.ABORT.value)
        if mode not in list(PauseMode):
            raise BadRequestError(f"mode must be one of {', '.join(PauseMode)}, got {mode!r}")
        count = await self._command(lambda: self.engine.pause(PauseMode(mode)))
        return _success(f"paused ({mode}), {count} requests affected", status="ok")

    async def continue_generation(self, _: HttpRequest) -> Response:
        """POST /continue_generation."""
        await self._command(self.engine.resume)
        return _success("continued", status="ok")

    async def flush_cache(self, _: HttpRequest) -> Response:
        """POST /flush_cache."""
        await self._command(self.engine.flush_cache)
        return _success("cache flushed")

    # -- information -------------------------------------------------------------------------------

    async def health(self, _: HttpRequest) -> Response:
        """GET /health: the engine's thread lives."""
        if self.engine.failure is not None:
            return _failure(503, f"the engine has stopped: {self.engine.failure!r}")
        return PlainTextResponse("")

    async def health_generate(self, http: HttpRequest) -> Response:
        """GET /health_generate: one token is generated, or, while paused, the thread answers."""
        try:
            async with asyncio.timeout(_HEALTH_DEADLINE_S):
                await self._command(lambda: None)
                if not self.engine.paused and self.engine.scheduler.cache.allocated:
                    call = self.parser.parse(
                        {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
                    )
                    await self._run(call.requests, None)
        except TimeoutError:
            return _failure(503, f"no token within {_HEALTH_DEADLINE_S:g} s")
        return PlainTextResponse("")

    async def model_info(self, _: HttpRequest) -> Response:
        """GET /model_info."""
        engine = self.engine
        kinds = [] if engine.media is None else list(engine.media.processor.kinds)
        return JSONResponse(
            {
                "model_path": str(engine.options.model_path),
                "tokenizer_path": str(engine.options.model_path),
                "is_generation": True,
                "weight_version": engine.scheduler.version,
                "model_type": engine.arch.name.removesuffix("ForCausalLM").lower(),
                "architectures": [engine.arch.name],
                "has_image_understanding": "image" in kinds,
                "has_audio_understanding": "audio" in kinds,
                "modalities": ["text", *kinds],
            }
        )

    async def server_info(self, _: HttpRequest) -> Response:
        """GET /server_info."""
        engine, options = self.engine, self.engine.options
        return JSONResponse(
            {
                "version": "embedded",
                "model_path": str(options.model_path),
                "vocab_size": engine.arch.spec.vocab_size,
                "hidden_size": engine.arch.spec.hidden_size,
                "num_hidden_layers": engine.arch.spec.num_layers,
                "tp_size": 1,
                "dp_size": 1,
                "dtype": str(engine.dtype).removeprefix("torch."),
                "device": str(engine.device),
                "context_length": engine.max_length,
                "max_running_requests": options.max_running_requests,
                "max_total_num_tokens": engine.max_total_tokens,
                "random_seed": options.random_seed,
                "paused": engine.paused,
                "weight_update": self.receiver.state,
                "weight_buffer_bytes": self.receiver.buffer_nbytes,
                "weight_version": engine.scheduler.version,
                "internal_states": [load_report(engine)],
            }
        )

    async def loads(self, _: HttpRequest) -> Response:
        """GET /v1/loads."""
        load = load_report(self.engine)
        return JSONResponse({"timestamp": time.time(), "version": "embedded", "dp_rank_count": 1, "loads": [load]})

    async def metrics(self, _: HttpRequest) -> Response:
        """GET /metrics, Prometheus text."""
        return PlainTextResponse(prometheus_text(self.engine))

    # -- memory and weights ------------------------------------------------------------------------

    async def release_memory(self, http: HttpRequest) -> Response:
        """POST /release_memory_occupation: `tags` among kv_cache, weights (default both)."""
        tags = (await _body(http)).tags("tags", _MEMORY_TAGS)
        await self._command(lambda: self.engine.release(tags))
        if "weights" in tags:
            self.receiver.trim()
        return _success(f"released {', '.join(sorted(tags))}")

    async def resume_memory(self, http: HttpRequest) -> Response:
        """POST /resume_memory_occupation: `tags` as for release."""
        tags = (await _body(http)).tags("tags", _MEMORY_TAGS)
        await self._command(lambda: self.engine.restore(tags))
        return _success(f"resumed {', '.join(sorted(tags))}")

    async def init_group(self, http: HttpRequest) -> Response:
        """POST /init_weights_update_group."""
        body = await _body(http)
        message = await asyncio.to_thread(
            self.receiver.join,
            master_address=body.text("master_address"),
            master_port=body.integer("master_port"),
            rank=body.integer("rank_offset"),
            world_size=body.integer("world_size"),
            group_name=body.text("group_name", "weight_update_group"),
            backend=body.text("backend", "nccl"),
        )
        return _success(message)

    async def destroy_group(self, http: HttpRequest) -> Response:
        """POST /destroy_weights_update_group."""
        name = (await _body(http)).text("group_name", "weight_update_group")
        return _success(await asyncio.to_thread(self.receiver.leave, name))

    async def begin_update(self, _: HttpRequest) -> Response:
        """POST /begin_weight_update."""
        return _success("weight update open", base=await asyncio.to_thread(self.receiver.begin))

    async def update_from_distributed(self, http: HttpRequest) -> Response:
        """POST /update_weights_from_distributed; `checksum` and `encoded_nbytes` are this project's additions."""
        body = await _body(http)
        load_format = body.text("load_format", "") or None
        if load_format not in (None, "flattened_bucket"):
            raise BadRequestError(f"load_format must be null or 'flattened_bucket', got {load_format!r}")
        message = await asyncio.to_thread(
            self.receiver.receive,
            Arriving(
                names=body.items("names", str),
                dtypes=body.items("dtypes", str),
                shapes=body.items("shapes", list),
                checksum=body.text("checksum", ""),
                encoded_nbytes=body.integer("encoded_nbytes", 0) or None,
            ),
            body.text("group_name", "weight_update_group"),
            flattened=load_format is not None,
            version=body.version("weight_version"),
            flush=body.flag("flush_cache", True),
        )
        return _success(message)

    async def update_from_tensor(self, http: HttpRequest) -> Response:
        """POST /update_weights_from_tensor: handles of shared host memory; `checksum` is this project's addition."""
        body = await _body(http)
        handles = body.items("serialized_named_tensors", str)
        if len(handles) != 1 or body.text("load_format", ""):
            raise BadRequestError(
                "serialized_named_tensors must have one entry, for this one process, and load_format must be null; "
                f"got {len(handles)} entries and {body.text('load_format', '')!r}"
            )
        try:
            serialized = base64.b64decode(handles[0], validate=True)
        except ValueError as error:
            raise BadRequestError(f"serialized_named_tensors is not base64: {error}") from error
        message = await asyncio.to_thread(
            self.receiver.receive_shared,
            serialized,
            body.text("checksum", ""),
            version=body.version("weight_version"),
            flush=body.flag("flush_cache", True),
        )
        return _success(message)

    async def end_update(self, http: HttpRequest) -> Response:
        """POST /end_weight_update; an optional `weight_version` overrides that of the buckets."""
        version = (await _body(http)).version("weight_version")
        message = await asyncio.to_thread(self.receiver.end, version)
        return _success(message, weight_version=self.engine.scheduler.version)

    async def update_from_disk(self, http: HttpRequest) -> Response:
        """POST /update_weights_from_disk: a model directory, or the URL of a version in a weight store."""
        body = await _body(http)
        message = await asyncio.to_thread(
            self.receiver.load,
            body.text("model_path"),
            version=body.version("weight_version"),
            flush=body.flag("flush_cache", True),
        )
        return _success(message, num_paused_requests=0)

    async def weights_checker(self, http: HttpRequest) -> Response:
        """POST /weights_checker: `action` checksum; one sum over all parameters in the order of their names."""
        from relax_engine.weight_sync.checksum import tensor_checksum

        action = (await _body(http)).text("action", "checksum")
        if action != "checksum":
            raise BadRequestError(f"action must be 'checksum', got {action!r}")
        raw = self.engine.raw
        checksum = await self._command(lambda: tensor_checksum(raw[name] for name in sorted(raw)))
        return _success("checksum", checksum=checksum, weight_version=self.engine.scheduler.version)


async def _json(http: HttpRequest) -> Any:
    data = await http.body()
    try:
        return json.loads(data) if data else {}
    except ValueError as error:
        raise BadRequestError(f"the body is not valid JSON: {error}") from error


async def _body(http: HttpRequest) -> Body:
    value = await _json(http)
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise BadRequestError(f"the body must be a JSON object, got {type(value).__name__}")
    return Body(value)
