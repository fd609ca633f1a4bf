"""The engine: one thread that owns the model, and a command queue into it.

Everything that touches tensors runs in that thread, between two decoding steps; other threads call
`LocalEngine.call` and wait for the future. What does not live here: HTTP (`server.py`), batching
(`scheduler.py`), receiving weights (`weight_update.py`).
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from relax_engine.backends.engines.local.arch import load_architecture
from relax_engine.backends.engines.local.compiled import compiles
from relax_engine.backends.engines.local.decoder import Decoder
from relax_engine.backends.engines.local.durations import RecentRate
from relax_engine.backends.engines.local.errors import BadRequestError, EngineError, ModelError
from relax_engine.backends.engines.local.kernels import KEY_BLOCK
from relax_engine.backends.engines.local.kv_cache import KVCache
from relax_engine.backends.engines.local.media import MediaRequests
from relax_engine.backends.engines.local.request import Batch, Request
from relax_engine.backends.engines.local.routed import RoutedExperts
from relax_engine.backends.engines.local.scheduler import Scheduler
from relax_engine.backends.engines.local.tokenizer import load_text_decoder
from relax_engine.backends.engines.local.weights import dummy_weights, fuse, read_weights, stored_dtype
from relax_engine.multimodal.content import MediaError
from relax_engine.multimodal.processor import MediaBudget, MediaProcessor

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DEFAULT_COLUMNS = 2048
_DEFAULT_CACHE_BYTES = 2 * 2**30


class PauseMode(enum.StrEnum):
    """What a pause does to the requests in flight."""

    ABORT = "abort"
    """They end with what they have."""
    RETRACT = "retract"
    """Their cache is dropped; they are recomputed on continue."""
    IN_PLACE = "in_place"
    """They keep their cache."""


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How to load and bound an engine; a size of None is chosen from the model."""

    model_path: Path
    max_running_requests: int = 256
    max_total_tokens: int | None = None
    context_length: int | None = None
    dtype: str | None = None
    device: str = "cpu"
    threads: int = 1
    random_seed: int = 0
    load_format: str = "auto"
    weight_version: str = "0"
    skip_tokenizer_init: bool = False
    return_routed_experts: bool = False
    media_budget: MediaBudget = dataclasses.field(default_factory=MediaBudget)


class LocalEngine:
    """Model, cache and scheduler behind a command queue.

    Pausing: RUNNING -> PAUSED (`pause`) -> RUNNING (`resume`); while paused, requests are accepted and wait.
    Memory: HELD -> RELEASED (`release`, idle only) -> HELD (`restore`); while released, requests are refused.
    """

    def __init__(self, options: EngineOptions) -> None:
        torch.set_num_threads(options.threads)
        self.options = options
        self.arch = load_architecture(options.model_path)
        self.dtype = _dtype(options.dtype)
        self.device = torch.device(options.device)
        self.text = None if options.skip_tokenizer_init else load_text_decoder(options.model_path)
        if options.load_format == "dummy":
            self.raw = dummy_weights(self.arch, self.dtype, options.random_seed)
        else:
            self.raw = read_weights(self.arch, options.model_path, self.dtype)
        self.media = None if self.arch.media is None else self._media_requests()
        eos = set(self.arch.eos_token_ids)
        if self.text is not None and self.text.eos_token_id is not None:
            eos.add(self.text.eos_token_id)
        self.eos_token_ids = frozenset(eos)
        context = min(
            self.arch.spec.max_position_embeddings, options.context_length or self.arch.spec.max_position_embeddings
        )
        total = options.max_total_tokens or self._default_tokens(context)
        self.max_total_tokens = total
        self.max_length = min(context, total)
        with torch.inference_mode():
            weights = fuse(self.arch, self.raw, dtype=self.dtype, device=self.device)
            routed = self._routed_experts()
            decoder = Decoder(self.arch, weights, dtype=self.dtype, device=self.device, routed=routed)
            if decoder.tower is not None:
                decoder.tower.load(self.raw)
            block = KEY_BLOCK if compiles(self.dtype, self.device) else None
            cache = KVCache(
                self.arch,
                total,
                block=block,
                dtype=self.dtype,
                device=self.device,
                routed=routed.width if routed is not None else 0,
            )
        self.scheduler = Scheduler(
            decoder,
            cache,
            max_running=options.max_running_requests,
            version=options.weight_version,
            text=self.text,
        )
        self.paused = self.weights_released = self._fuse_first = False
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.failure: BaseException | None = None
        self.rate = RecentRate()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def _routed_experts(self) -> RoutedExperts | None:
        if not self.options.return_routed_experts:
            return None
        if self.arch.spec.experts is None:
            raise EngineError(f"--enable-return-routed-experts: {self.arch.name} has no experts")
        return RoutedExperts(self.arch)

    def _media_requests(self) -> MediaRequests:
        try:
            return MediaRequests(MediaProcessor(self.options.model_path, self.options.media_budget))
        except MediaError as error:
            raise ModelError(str(error)) from error

    def _default_tokens(self, context: int) -> int:
        per_token = self.arch.kv_elements_per_token * self.dtype.itemsize
        wanted = self.options.max_running_requests * min(context, _DEFAULT_COLUMNS)
        return max(min(wanted, _DEFAULT_CACHE_BYTES // per_token), min(context, _DEFAULT_COLUMNS))

    # -- the thread --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; commands still queued fail."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout=30)

    def call(self, command: Callable[[], T]) -> Future[T]:
        """Run `command` in the engine's thread between two steps."""
        future: Future[T] = Future()
        with self._wake:
            if self._closing or self.failure is not None:
                future.set_exception(EngineError(f"the engine has stopped: {self.failure or 'closing'}"))
                return future
            self._commands.append((command, future))
            self._wake.notify()
        return future

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._serve():
                    pass
        except BaseException as error:
            # The thread cannot continue; every waiting caller and the health check must learn of it.
            logger.exception("the engine thread failed")
            self.failure = error
            raise
        finally:
            with self._wake:
                self._closing = True
                for _, future in self._commands:
                    future.set_exception(EngineError(f"the engine has stopped: {self.failure or 'closing'}"))
                self._commands.clear()

    def _serve(self) -> bool:
        """One round: queued commands, then steps; False when closing."""
        with self._wake:
            while not self._commands and not self._closing and (self.paused or not self.scheduler.busy):
                self._wake.wait()
            if self._closing:
                return False
        while self._commands:
            command, future = self._commands.popleft()
            try:
                future.set_result(command())
            except EngineError as error:
                future.set_exception(error)
        if not self.paused and self.scheduler.busy:
            if self._fuse_first:
                self._fuse()
            self.scheduler.advance(lambda: bool(self._commands) or self._closing)
        return True

    # -- commands: call these through `call` -------------------------------------------------------

    def submit(self, batch: Batch) -> None:
        """Queue a batch.

        Raises:
            BadRequestError: memory is released.
        """
        if not self.scheduler.cache.allocated or self.weights_released:
            raise BadRequestError("the engine's memory is released: call /resume_memory_occupation first")
        self.scheduler.submit(batch)

    def abort(self, rid: str | None, message: str = "Aborted") -> int:
        """Abort requests whose id starts with `rid`, or all when None; returns their number."""

        def selected(request: Request) -> bool:
            return rid is None or request.rid.startswith(rid)

        return self.scheduler.abort(selected, message)

    def pause(self, mode: PauseMode) -> int:
        """Stop stepping; returns the number of requests aborted, retracted or held."""
        self.paused = True
        if mode is PauseMode.ABORT:
            return self.abort(None, "Aborted by pause_generation")
        if mode is PauseMode.RETRACT:
            return self.scheduler.retract()
        return len(self.scheduler.running)

    def resume(self) -> None:
        """Continue stepping."""
        self.paused = False

    def flush_cache(self) -> None:
        """Forget every cached token.

        Raises:
            BadRequestError: running requests hold cache.
        """
        running = len(self.scheduler.running)
        if running:
            raise BadRequestError(
                f"{running} running requests hold cache; /pause_generation with mode 'retract' or 'abort' first"
            )

    def adopt_weights(self, tensors: Mapping[str, Tensor], version: str | None, *, flush: bool) -> None:
        """Replace the given parameters (Hugging Face names, checked by the caller) and name the result `version`.

        With `flush`, running requests are retracted, so that their cache is recomputed under the new weights.
        """
        if flush:
            self.scheduler.retract()
        for name, tensor in tensors.items():
            self.raw[name] = tensor.to(device="cpu", dtype=stored_dtype(name, self.dtype))
        if not self.weights_released:
            self._fuse()
        self.scheduler.set_version(version if version is not None else self.scheduler.version)

    def _fuse(self) -> None:
        decoder = self.scheduler.decoder
        decoder.weights = fuse(self.arch, self.raw, dtype=self.dtype, device=self.device)
        if decoder.tower is not None:
            decoder.tower.load(self.raw)
        self._fuse_first = False

    def release(self, tags: set[str]) -> None:
        """Free the cache (`kv_cache`) and the fused weights (`weights`; the parameters stay in host memory).

        Raises:
            BadRequestError: requests are running or waiting.
        """
        if self.scheduler.busy:
            count = len(self.scheduler.running) + len(self.scheduler.waiting)
            raise BadRequestError(f"{count} requests are in flight; abort them or wait before releasing memory")
        if "kv_cache" in tags:
            self.scheduler.cache.release()
        if "weights" in tags:
            self.scheduler.decoder.weights.layers.clear()
            self.weights_released = True

    def restore(self, tags: set[str]) -> None:
        """Take back what `release` freed."""
        if "kv_cache" in tags and not self.scheduler.cache.allocated:
            self.scheduler.cache.allocate()
        if "weights" in tags and self.weights_released:
            # Fused when the next step needs them: new ones come first where training took the memory.
            self.weights_released, self._fuse_first = False, True


def _dtype(name: str | None) -> torch.dtype:
    choices = {None: torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in choices:
        raise EngineError(f"--dtype {name!r} is not one of float32, bfloat16")
    return choices[name]
