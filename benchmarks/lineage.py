"""Lookups in a store of many artifacts: how long each kind of question takes, on a directory and on an S3 server.

    python benchmarks/lineage.py                   # 100,000 artifacts in a directory, 5,000 on moto's server

Artifacts stand in pipelines of ten (raw data to report), a thousand names, every pipeline's model under one name of
its own; all share one dataset. Results: benchmarks/results/lineage.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from relax_engine.lineage import ArtifactStore
from relax_engine.utils.network import free_port

ROOT = Path(__file__).resolve().parents[1]
CHAIN = (
    ("raw", "dataset"),
    ("prompts", "dataset"),
    ("validation", "evaluation"),
    ("start", "checkpoint"),
    ("run", "run"),
    ("checkpoint", "checkpoint"),
    ("model", "model"),
    ("before", "evaluation"),
    ("after", "evaluation"),
    ("report", "evaluation"),
)
PIPELINES = 100  # of one family of names; each has as many versions as it takes
LOOKUPS = 20


def fill(store: ArtifactStore, count: int, folder: Path, threads: int) -> None:
    """`count` artifacts of one small file each, `threads` writers at once."""
    shared = folder / "shared"
    shared.write_text("a dataset that every pipeline uses")
    base = store.publish(shared, kind="dataset", name="shared")

    def family(number: int) -> None:
        for version in range(count // len(CHAIN) // PIPELINES):
            before = base
            for part, kind in CHAIN:
                path = folder / f"{number}-{part}"
                path.write_text(f"{number} {part} {version}")
                before = store.publish(path, kind=kind, name=f"p{number:03}-{part}", parents=[before])

    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(family, range(PIPELINES)))


def questions(store: ArtifactStore, folder: Path, versions: int) -> dict[str, Callable[[random.Random], Any]]:
    """Name of a lookup -> one of its kind, at random."""

    def pick(chance: random.Random, part: str = "model") -> str:
        return f"p{chance.randrange(PIPELINES):03}-{part}@v{chance.randrange(1, versions + 1)}"

    def copied(chance: random.Random) -> Any:
        version = chance.randrange(versions)
        path = folder / "copied"
        path.write_text(f"{chance.randrange(PIPELINES)} model {version}")
        return store.holders(path)[0]

    digests = {pick(random.Random(seed)): "" for seed in range(LOOKUPS)}
    digests = {ref: store.resolve(ref).digest for ref in digests}
    return {
        "name": lambda chance: store.resolve(f"p{chance.randrange(PIPELINES):03}-model"),
        "name@vN": lambda chance: store.resolve(pick(chance)),
        "digest prefix": lambda chance: store.resolve(chance.choice(list(digests.values()))[:12]),
        "which FILE": copied,
        "ancestors of a report": lambda chance: store.ancestors(pick(chance, "report")),
        "descendants of a model": lambda chance: store.descendants(pick(chance)),
        "log of a name": lambda chance: store.versions(f"p{chance.randrange(PIPELINES):03}-model"),
        "diff of two reports": lambda chance: store.diff(pick(chance, "report"), pick(chance, "report")),
        "names": lambda _: list(store.names("model")),
    }


def measure(store: ArtifactStore, count: int, folder: Path, threads: int) -> dict[str, Any]:
    """Milliseconds of every lookup: median and longest of `LOOKUPS`, through a store opened anew."""
    started = time.perf_counter()
    fill(store, count, folder, threads)
    published = time.perf_counter() - started
    versions = count // len(CHAIN) // PIPELINES
    store = ArtifactStore.open(store.url, create=False)
    lookups = {}
    for name, ask in questions(store, folder, versions).items():
        chance, times = random.Random(1), []
        for _ in range(LOOKUPS):
            started = time.perf_counter()
            assert ask(chance), name
            times.append((time.perf_counter() - started) * 1e3)
        lookups[name] = {"median_ms": round(statistics.median(times), 2), "longest_ms": round(max(times), 2)}
        print(f"  {name:<24} {lookups[name]['median_ms']:>10.2f} {lookups[name]['longest_ms']:>10.2f}", flush=True)
    return {
        "artifacts": count + 1,
        "names": PIPELINES * len(CHAIN) + 1,
        "publications_per_s": round(count / published, 1),
        "lookups": lookups,
    }


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[str]:
    """URL of a place in a bucket on a server of its own."""
    import s3fs

    port = free_port()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "testtest",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    try:
        files = s3fs.S3FileSystem()
        for _ in range(120):
            with contextlib.suppress(OSError):
                files.call_s3("create_bucket", Bucket="lineage")
                break
            time.sleep(0.5)
        yield "s3://lineage/store"
    finally:
        server.terminate()
        server.wait(10)


def main() -> None:
    """Fill both stores, ask, print and keep the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=int, default=100_000, help="in the directory (%(default)s)")
    parser.add_argument("--artifacts-s3", type=int, default=5_000, help="on moto's server (%(default)s)")
    parser.add_argument("--output", default=str(ROOT / "benchmarks/results/lineage.json"))
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"directory, {options.artifacts} artifacts: median and longest, ms")
        results["directory"] = measure(ArtifactStore.open(f"{name}/store"), options.artifacts, folder, 4)
        print(f"S3 (moto), {options.artifacts_s3} artifacts: median and longest, ms")
        with moto(folder) as url:
            results["s3"] = measure(ArtifactStore.open(url), options.artifacts_s3, folder, 8)
        Path(options.output).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
