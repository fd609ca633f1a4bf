"""A fleet whose engines are entries of a table, for tests of what is decided about them; the pool is the real one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_engine.elastic.failures import EngineJoinError, FailureCategory
from relax_engine.elastic.fence import WeightFence
from relax_engine.elastic.fleet import EngineFleet
from relax_engine.elastic.requests import ScaleIn, ScaleOut
from relax_engine.elastic.scaler import Scaler
from relax_engine.elastic.settings import ElasticSettings
from relax_engine.elastic.urls import check_engine_url
from relax_engine.rollout.pool import EnginePool


class TableFleet(EngineFleet):
    """Its engines generate whenever they are asked whether they do, and all serve the same model."""

    async def own_facts(self, timeout_s: float) -> dict[str, Any]:
        return {"architectures": ["Tiny"]}

    async def check(self, url: str, timeout_s: float) -> None:
        await asyncio.sleep(0)


@dataclass
class EngineRoom:
    """Scaling of a model with `initial` engines; the test plays cluster and actor.

    `gate` holds starts up until it is set; the next starts end with the errors in `start_errors`.
    """

    initial: int = 1
    settings: ElasticSettings = field(default_factory=ElasticSettings)
    replaces: bool = True

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.running: set[str] = set()
        self.watched: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.start_errors: list[Exception | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.version = 7
        self.cuts: list[str] = []
        urls = [self.url(f"initial-{number}") for number in range(self.initial)]
        self.running.update(urls)
        self.pool = EnginePool(urls, timeout_s=5, replace_s=5 if self.replaces else None)
        self.fence = WeightFence()
        self.fleet = TableFleet(self.pool, self, self.emit, self.fence, cut=self.cut, allow=allow)
        self.scaler = Scaler("default", self.fleet, self.settings, self.emit, version=lambda: self.version)

    @staticmethod
    def url(name: str) -> str:
        return f"http://{name}"

    def emit(self, kind: str, **values: Any) -> None:
        self.events.append({"kind": kind, **values})

    async def cut(self, url: str) -> None:
        self.cuts.append(url)

    # -- the cluster ---------------------------------------------------------------------------

    async def launch(self, timeout_s: float) -> str:
        try:
            await asyncio.wait_for(self.gate.wait(), timeout_s)
        except TimeoutError:
            raise EngineJoinError(FailureCategory.PROVISION_TIMEOUT, "no room") from None
        error = self.start_errors.pop(0) if self.start_errors else None
        if error is not None:
            raise error
        url = self.url(f"added-{next(self.numbers)}")
        self.running.add(url)
        return url

    async def end(self, url: str, timeout_s: float) -> None:
        await asyncio.sleep(0)
        self.running.discard(url)

    def watch(self, url: str) -> None:
        self.watched.append(url)

    def details(self, url: str) -> Mapping[str, Any]:
        return {"pid": 1, "node_id": "node"} if url in self.running else {}

    # -- the actor -----------------------------------------------------------------------------

    async def send_weights(self, failing: Sequence[str] = ()) -> None:
        """One whole update: everyone who is to have them gets them, but those that fail."""
        self.fence.close()
        receivers = self.pool.receivers()
        await asyncio.sleep(0)
        self.version += 1
        for url in failing:
            self.pool.quarantine(url, "the update failed")
        await self.pool.release([url for url in receivers if url not in failing])
        self.fence.open()

    # -- waiting -------------------------------------------------------------------------------

    async def until(self, condition: Any, seconds: float = 5) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0)

    async def grown(self, request: ScaleOut) -> ScaleOut:
        """Send weights as soon as they are waited for; return at the end."""
        await self.until(lambda: request.finished or request.status == "WEIGHT_SYNCING")
        if not request.finished:
            await self.send_weights()
        await self.until(lambda: request.finished)
        return request

    async def scaled(self, request: ScaleIn) -> ScaleIn:
        await self.until(lambda: request.finished)
        return request

    def statuses(self, request: ScaleOut | ScaleIn) -> list[str]:
        """All that were told, in order."""
        return [event["status"] for event in self.events if event.get("request_id") == request.request_id]

    async def close(self) -> None:
        await self.scaler.close()
        await self.pool.close()


def allow(url: str) -> None:
    check_engine_url(url, ["127.0.0.0/8"])
