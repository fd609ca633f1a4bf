"""Scale requests of one model: which are taken, one at a time, and which engines they are about.

What lives here: decisions. What does not: carrying them out (`growing.py`, `shrinking.py`), and HTTP (`api.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from relax_engine.elastic.failures import FencedError, ScaleRefusedError
from relax_engine.elastic.fleet import Emit, EngineFleet
from relax_engine.elastic.growing import Growth
from relax_engine.elastic.ledger import Ledger
from relax_engine.elastic.requests import ScaleIn, ScaleOut
from relax_engine.elastic.settings import ElasticSettings
from relax_engine.elastic.shrinking import shrink
from relax_engine.elastic.states import CANCELLABLE, ScaleInStatus, ScaleOutStatus

NO_REQUEST = ""
"""Id of the request that a NOOP stands for."""


class Scaler:
    """Takes absolute targets, so that a request may be repeated.

    A repeated request gets the one that is under way, or NOOP when it has been carried out; any other is refused
    while one is under way. Evictions are carried out between requests.
    """

    def __init__(
        self,
        model_name: str,
        fleet: EngineFleet,
        settings: ElasticSettings,
        emit: Emit,
        *,
        version: Callable[[], int],
    ) -> None:
        """`version` says which weights are current."""
        self.model_name, self.fleet, self.settings = model_name, fleet, settings
        self.ledger = Ledger()
        self._emit, self._version = emit, version
        self._turn = asyncio.Lock()
        self._growth: Growth | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- more engines ------------------------------------------------------------------------------

    def scale_out(self, num_replicas: int | None, engine_urls: Sequence[str], timeout_s: float | None) -> ScaleOut:
        """Have `num_replicas` engines in all, or take in those at `engine_urls`.

        Raises:
            ScaleRefusedError: the target is no larger number, or something else is under way.
        """
        request = ScaleOut(
            model_name=self.model_name,
            timeout_s=timeout_s or self.settings.scale_out_timeout_s,
            num_replicas=num_replicas,
            engine_urls=tuple(dict.fromkeys(url.rstrip("/") for url in engine_urls)),
        )
        running = self.ledger.running()
        if isinstance(running, ScaleOut) and running.same_as(request.num_replicas, request.engine_urls):
            return running
        self.ledger.require_idle()
        count = self._missing(request)
        if count == 0:
            request.request_id, request.status = NO_REQUEST, ScaleOutStatus.NOOP
            request.message = "these engines are there already"
            return request
        self.ledger.add(request)
        self._tell(request)
        self._start(self._grow(request, count))
        return request

    def _missing(self, request: ScaleOut) -> int:
        """How many engines the request adds; leaves out URLs of engines that are there."""
        present = [engine.url for engine in self.fleet.engines]
        if request.num_replicas is None:
            request.engine_urls = tuple(url for url in request.engine_urls if url not in present)
            return len(request.engine_urls)
        if request.num_replicas < len(present):
            raise ScaleRefusedError(
                f"num_replicas is {request.num_replicas}, and {len(present)} engines are there; "
                "for fewer of them use /scale_in"
            )
        return request.num_replicas - len(present)

    async def _grow(self, request: ScaleOut, count: int) -> None:
        async with self._turn:
            if request.cancelled:
                return
            self._growth = Growth(self.fleet, self.settings, request, self._tell)
            await self._growth.run(count, self._version)
            self._growth = None

    def cancel(self, request_id: str) -> ScaleOut:
        """Cancel a scale-out request whose engines do not run yet.

        Raises:
            UnknownScaleError: there is none of that id.
            ScaleRefusedError: it is too late.
        """
        request = self.ledger.scale_out(request_id)
        if request.status not in CANCELLABLE:
            raise ScaleRefusedError(
                f"scale-out {request_id} is {request.status}; it can be cancelled while it is PENDING or CREATING",
                request_id,
            )
        if self._growth is not None and self._growth.request is request:
            self._growth.cancel()
        else:
            request.cancelled, request.message = True, "cancelled"
            request.advance(ScaleOutStatus.CANCELLED)
            self._tell(request)
        return request

    # -- fewer engines -----------------------------------------------------------------------------

    async def scale_in(
        self,
        num_replicas: int | None,
        engine_urls: Sequence[str],
        *,
        force: bool = False,
        timeout_s: float | None = None,
        dry_run: bool = False,
    ) -> ScaleIn:
        """Have `num_replicas` engines left, which has priority, or remove those at `engine_urls`.

        Raises:
            ScaleRefusedError: the target is a larger number, an engine is unknown or protected, something else is
                under way, or a weight update does not end.
        """
        urls = tuple(dict.fromkeys(url.rstrip("/") for url in engine_urls)) if num_replicas is None else ()
        running = self.ledger.running()
        if isinstance(running, ScaleIn) and running.same_as(num_replicas, urls, force):
            return running
        self.ledger.require_idle()
        if not dry_run and not await self.fleet.fence.wait(self.settings.fence_timeout_s):
            raise FencedError(f"a weight update has been under way for {self.settings.fence_timeout_s:g} s; try again")
        self.ledger.require_idle()  # another request may have come meanwhile
        request = ScaleIn(
            model_name=self.model_name,
            timeout_s=timeout_s or self.settings.drain_timeout_s + 3 * self.settings.shutdown_timeout_s,
            num_replicas=num_replicas,
            engine_urls=urls,
            force=force,
            selected_engines=self._selected(num_replicas, urls),
        )
        if not request.selected_engines or dry_run:
            done = not request.selected_engines
            request.request_id, request.status = NO_REQUEST, ScaleInStatus.NOOP
            request.message = "no engine has to leave" if done else "these engines would leave (dry_run)"
            return request
        self._begin(request)
        return request

    def evicted(self, url: str) -> ScaleIn:
        """An added engine was told to end by its machine: it leaves, as if that had been asked for."""
        request = ScaleIn(
            model_name=self.model_name,
            timeout_s=self.settings.drain_timeout_s + 3 * self.settings.shutdown_timeout_s,
            engine_urls=(url,),
            evicted=True,
            selected_engines=(url,),
        )
        self._begin(request)
        return request

    def _begin(self, request: ScaleIn) -> None:
        self.ledger.add(request)
        self._tell(request)
        self._start(self._shrink(request))

    async def _shrink(self, request: ScaleIn) -> None:
        async with self._turn:
            await shrink(self.fleet, self.settings, request, self._tell)

    def _selected(self, num_replicas: int | None, urls: Sequence[str]) -> tuple[str, ...]:
        present = {engine.url: engine for engine in self.fleet.engines}
        if num_replicas is None:
            self._require_removable(urls)
            return tuple(url for url in urls if url in present)
        if num_replicas > len(present):
            raise ScaleRefusedError(
                f"num_replicas is {num_replicas}, and {len(present)} engines are there; for more use /scale_out"
            )
        if num_replicas < self.fleet.protected:
            raise ScaleRefusedError(
                f"num_replicas is {num_replicas}, and the {self.fleet.protected} engines that the run started with stay"
            )
        return tuple(self.fleet.newest(len(present) - num_replicas))

    def _require_removable(self, urls: Sequence[str]) -> None:
        engines = self.fleet.pool.engines
        protected = [url for url in urls if url in engines and engines[url].origin == "initial"]
        if protected:
            raise ScaleRefusedError(f"the run started with {protected}; such engines stay")

    # -- both --------------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, request: ScaleOut | ScaleIn) -> None:
        """Say that the request is in another state."""
        kind = "scale_out" if isinstance(request, ScaleOut) else "scale_in"
        engines = request.engine_ids if isinstance(request, ScaleOut) else list(request.selected_engines)
        self._emit(
            kind,
            request_id=request.request_id,
            model=request.model_name,
            status=str(request.status),
            engines=list(engines),
            failed=dict(request.failed_engines),
            message=request.message,
        )

    async def close(self) -> None:
        """Stop what is under way; the engines end with the run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
