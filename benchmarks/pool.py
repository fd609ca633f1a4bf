"""Requests over engines that come and go: errors, and what the pool adds to a call.

    python benchmarks/pool.py [--requests 2000] [--engines 8] [--out benchmarks/results/pool.json]

Real embedded engines of a tiny model. First, all requests at once over half of the engines, while the others join, some
leave with requests under way, and come back; every answer is checked. Then 100 requests a second of one token, in turn
through the pool and straight to the same engine: the latency that the pool adds, and its CPU per request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from examples.tiny_math.make_model import make_model
from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.rollout.pool import EnginePool

ROOT = Path(__file__).resolve().parents[1]
PROMPT = list(range(3, 19))
RATE, PROBES = 100, 600  # requests a second, requests of each kind
_TIMEOUT_S = 600.0


async def crowd(urls: list[str], requests: int) -> dict[str, Any]:
    """All requests at once, while engines join, leave and come back."""
    half = len(urls) // 2
    lengths, errors = [], []
    async with EnginePool(urls[:half], timeout_s=_TIMEOUT_S) as pool:

        async def one(number: int) -> None:
            sampling = {
                "temperature": 1.0,
                "max_new_tokens": 16 + number % 17,
                "ignore_eos": True,
                "sampling_seed": number,
            }
            try:
                (output,) = await pool.run(
                    lambda client: client.generate_batch([PROMPT], sampling), samples=1, what=f"request {number}"
                )
                lengths.append(len(output.output_ids) - sampling["max_new_tokens"])
            except Exception as error:  # noqa: BLE001 - counted
                errors.append(repr(error))

        async def come(url: str) -> None:
            pool.add(url, "ray_native")
            await pool.release([url])
            await pool.activate([url])

        async def scale() -> int:
            moves = 0
            while not done.is_set():
                for url in urls[half:]:
                    await come(url)
                await asyncio.sleep(0.5)
                for url in urls[half:]:
                    pool.drain(url)
                await asyncio.sleep(0.2)  # the requests that are still there go on elsewhere
                for url in urls[half:]:
                    await pool.remove(url)
                moves += 2 * half
                await asyncio.sleep(0.3)
            return moves

        done = asyncio.Event()
        started = time.perf_counter()
        scaling = asyncio.create_task(scale())
        await asyncio.gather(*(one(number) for number in range(requests)))
        seconds = time.perf_counter() - started
        done.set()
        moves = await scaling
    return {
        "requests": requests,
        "engines": len(urls),
        "errors": len(errors),
        "wrong_lengths": sum(difference != 0 for difference in lengths),
        "joins_and_leaves": moves,
        "seconds": round(seconds, 2),
        "first_errors": errors[:3],
    }


async def overhead(url: str) -> dict[str, float]:
    """One token at a steady rate, in turn straight to the engine and through a pool."""
    sampling = {"temperature": 0.0, "max_new_tokens": 1}
    seconds: dict[str, list[float]] = {"direct": [], "pool": []}
    cpu = {"direct": 0.0, "pool": 0.0}
    async with EngineClient(url, timeout_s=_TIMEOUT_S) as client, EnginePool([url], timeout_s=_TIMEOUT_S) as pool:

        async def one(kind: str) -> None:
            started = time.perf_counter()
            if kind == "direct":
                await client.generate_batch([PROMPT], sampling)
            else:
                await pool.run(lambda client: client.generate_batch([PROMPT], sampling), samples=1, what="a probe")
            seconds[kind].append(time.perf_counter() - started)

        for _ in range(PROBES // RATE):  # a second of each, in turn
            for kind in seconds:
                before = time.process_time()
                tasks = []
                for _ in range(RATE):
                    tasks.append(asyncio.create_task(one(kind)))
                    await asyncio.sleep(1 / RATE)
                await asyncio.gather(*tasks)
                cpu[kind] += time.process_time() - before
    medians = {kind: statistics.median(values) * 1000 for kind, values in seconds.items()}
    return {
        "direct_median_ms": round(medians["direct"], 3),
        "pool_median_ms": round(medians["pool"], 3),
        "added_median_ms": round(medians["pool"] - medians["direct"], 3),
        "pool_cpu_ms_per_request": round(cpu["pool"] / PROBES * 1000, 3),
        "direct_cpu_ms_per_request": round(cpu["direct"] / PROBES * 1000, 3),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "pool.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        model = make_model(Path(work) / "model")
        engines: list[EngineProcess] = []
        try:
            with ThreadPoolExecutor(2) as starters:
                for engine in starters.map(lambda _: launch_engine(model, timeout_s=300), range(options.engines)):
                    engines.append(engine)
            urls = [engine.url for engine in engines]
            facts = {
                "cpus": os.cpu_count(),
                "crowd": asyncio.run(crowd(urls, options.requests)),
                "overhead": asyncio.run(overhead(urls[0])),
            }
        finally:
            for engine in engines:
                engine.close()
    print(json.dumps(facts, indent=1))
    options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
