"""The control plane with many engines: seconds, CPU-seconds, steps and memory to join, to get weights and to leave.

    python benchmarks/elastic.py [--engines 10 100 1000] [--out benchmarks/results/elastic.json]

Engines are HTTP servers on loopback, one port each, in one process beside; they answer what the control plane asks and
do nothing else. They join through a scale request, as external ones do (address check, comparison, a generated token,
weights pulled from a store), get another version, and leave through a scale request. CPU is that of this process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Awaitable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from relax_engine.elastic.fence import WeightFence
from relax_engine.elastic.fleet import EngineFleet
from relax_engine.elastic.requests import ScaleIn, ScaleOut
from relax_engine.elastic.scaler import Scaler
from relax_engine.elastic.settings import ElasticSettings
from relax_engine.elastic.urls import check_engine_url
from relax_engine.rollout.pool import EnginePool
from relax_engine.weight_sync.newcomers import pull_newest
from relax_engine.weight_sync.receivers import EngineReceiver
from relax_engine.weight_sync.store import WeightStore

ROOT = Path(__file__).resolve().parents[1]
_DEADLINE_S = 600.0
_ANSWER = json.dumps(
    {"architectures": ["Tiny"], "model_type": "tiny", "dtype": "float32", "base": "", "weight_version": "1"}
).encode()
_RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    % (
        len(_ANSWER),
        _ANSWER,
    )
)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    await reader.readexactly(length)
    writer.write(_RESPONSE)
    await writer.drain()
    writer.close()


def serve(count: int, ready: Connection) -> None:
    """Serve on `count` ports until the other end of `ready` is closed."""

    async def run() -> None:
        servers = [await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=16) for _ in range(count)]
        ready.send([server.sockets[0].getsockname()[1] for server in servers])
        await asyncio.to_thread(ready.poll, None)

    asyncio.run(run())


class Elsewhere:
    """Its engines are not this run's to start and to end."""

    async def launch(self, timeout_s: float) -> str:
        raise AssertionError("no engine is to be started")

    async def end(self, url: str, timeout_s: float) -> None:
        return

    def watch(self, url: str) -> None:
        return

    def details(self, url: str) -> Mapping[str, Any]:
        return {}


class Actor:
    """Sends newcomers what is in the store, all that came together at once."""

    def __init__(self, store: str, pool: EnginePool) -> None:
        self.store, self.pool = store, pool
        self.version = 0
        self.steps = 0
        self._waiting: list[str] = []
        self._work: asyncio.Task[None] | None = None

    def publish(self) -> None:
        """A version without tensors: what is measured is the control plane."""
        self.version += 1
        WeightStore(self.store).writer().publish({}, self.version)

    def hear(self, kind: str, **event: Any) -> None:
        """The event of an engine that comes."""
        if kind == "engine_started":
            self._waiting.append(event["engine"])
            if self._work is None or self._work.done():
                self._work = asyncio.create_task(self._bring_up())

    async def _bring_up(self) -> None:
        await asyncio.sleep(0)
        urls, self._waiting = self._waiting, []
        await self.sync(urls)

    async def sync(self, urls: list[str]) -> None:
        """Have engines pull the newest version."""
        receivers = [EngineReceiver(url, _DEADLINE_S) for url in urls]
        report = await pull_newest(self.store, receivers, self.version, _DEADLINE_S)
        assert not report.quarantined, report.quarantined
        self.steps = report.steps
        await self.pool.release(report.committed)


async def _ended(request: ScaleOut | ScaleIn) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        while not request.finished:
            await asyncio.sleep(0.005)
    assert request.status in ("ACTIVE", "COMPLETED"), (request.status, request.message)


async def _measured(work: Awaitable[Any]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    await work
    return {"seconds": round(time.perf_counter() - wall, 3), "cpu_seconds": round(time.process_time() - cpu, 3)}


async def measure(count: int, store: str) -> dict[str, Any]:
    """One run of `count` engines that come, get a version more, and leave."""
    here, there = multiprocessing.Pipe()
    servers = multiprocessing.get_context("spawn").Process(target=serve, args=(count + 1, there), daemon=True)
    servers.start()
    own, *others = [f"http://127.0.0.1:{port}" for port in await asyncio.to_thread(here.recv)]
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    pool = EnginePool([own], timeout_s=_DEADLINE_S)
    actor = Actor(store, pool)
    actor.publish()

    async def nothing_to_cut(_: str) -> None:
        return

    def allow(url: str) -> None:
        check_engine_url(url, ["127.0.0.0/8"])

    fleet = EngineFleet(pool, Elsewhere(), actor.hear, WeightFence(), cut=nothing_to_cut, allow=allow)
    scaler = Scaler("default", fleet, ElasticSettings(), lambda *_, **__: None, version=lambda: actor.version)
    async with pool:
        facts: dict[str, Any] = {"engines": count}
        facts["join"] = await _measured(_ended(scaler.scale_out(None, others, _DEADLINE_S)))
        actor.publish()
        facts["sync"] = await _measured(actor.sync(pool.receivers()))
        facts["sync"]["steps"] = actor.steps
        facts["leave"] = await _measured(_ended(await scaler.scale_in(None, others, timeout_s=_DEADLINE_S)))
        assert list(pool.engines) == [own]
    facts["kib_per_engine"] = round((process.memory_info().rss - before) / count / 1024, 1)
    here.send(None)
    servers.join(10)
    return facts


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "elastic.json")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = []
    for count in options.engines:
        with tempfile.TemporaryDirectory() as store:
            results.append(asyncio.run(measure(count, store)))
            print(json.dumps(results[-1]))
    options.out.write_text(json.dumps({"cpus": os.cpu_count(), "runs": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
