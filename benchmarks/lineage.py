"""Lookups in a store of many artifacts: how long each kind of question takes, on a directory and on an S3 server.

    python benchmarks/lineage.py                   # 100,000 artifacts in a directory, 2,000 on an S3 server
    python benchmarks/lineage.py --stores s3 --server ceph        # as root, with the packages of `make test-s3`

Artifacts stand in pipelines of ten (raw data to report), a thousand names, every pipeline's model under one name of
its own; all share one dataset. The last two questions are asked with 100,000 names: they are put into the store's list
of names, which is all that these questions read. Results, by store: benchmarks/results/lineage.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.errors import ArtifactNotFoundError
from relax_engine.lineage.names import NAMES_KEY, serialise

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
NAMES = 100_000
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
        "names of a kind": lambda _: store.names("model"),
    }


def many_names(store: ArtifactStore) -> dict[str, Callable[[random.Random], Any]]:
    """Two lookups, in a store whose list of names has grown to `NAMES`."""
    kinds = {f"p{number:06}-{part}": kind for number in range(NAMES // len(CHAIN)) for part, kind in CHAIN}
    listed = store._backend.get(NAMES_KEY)
    assert listed
    assert store._backend.compare_and_swap(NAMES_KEY, serialise(kinds), listed.token)

    def unknown(chance: random.Random) -> str:
        try:
            return store.resolve(f"p{chance.randrange(NAMES // len(CHAIN)):06}-modle").ref
        except ArtifactNotFoundError as error:
            return str(error)

    return {"names of a kind, 100,000 names": lambda _: store.names("model"), "no such name, 100,000 names": unknown}


def measure(store: ArtifactStore, count: int, folder: Path, threads: int) -> dict[str, Any]:
    """Milliseconds of every lookup: median and longest of `LOOKUPS`, through a store opened anew."""
    started = time.perf_counter()
    fill(store, count, folder, threads)
    published = time.perf_counter() - started
    versions = count // len(CHAIN) // PIPELINES
    store = ArtifactStore.open(store.url, create=False)
    lookups = {}
    for prepare in (lambda: questions(store, folder, versions), lambda: many_names(store)):
        for name, ask in prepare().items():
            chance, times = random.Random(1), []
            for _ in range(LOOKUPS):
                started = time.perf_counter()
                assert ask(chance), name
                times.append((time.perf_counter() - started) * 1e3)
            lookups[name] = {"median_ms": round(statistics.median(times), 2), "longest_ms": round(max(times), 2)}
            print(f"  {name:<32} {lookups[name]['median_ms']:>10.2f} {lookups[name]['longest_ms']:>10.2f}", flush=True)
    return {
        "artifacts": count + 1,
        "names": PIPELINES * len(CHAIN) + 1,
        "publications_per_s": round(count / published, 1),
        "lookups": lookups,
    }


@contextlib.contextmanager
def bucket(server: str, folder: Path) -> Iterator[str]:
    """URL of a place in a new bucket on an S3 server of its own, as the tests start it."""
    sys.path.insert(0, str(ROOT))
    import s3fs

    from tests.integration.ceph import ceph_gateway
    from tests.integration.s3 import CREDENTIALS, moto_server

    keys = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    with moto_server(folder) if server == "moto" else ceph_gateway(folder, *keys) as endpoint:
        os.environ.update(CREDENTIALS, AWS_ENDPOINT_URL=endpoint)
        s3fs.S3FileSystem().call_s3("create_bucket", Bucket="lineage")
        yield "s3://lineage/store"


def main() -> None:
    """Fill the stores, ask, print and keep the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=("directory", "s3"), default=["directory", "s3"])
    parser.add_argument("--artifacts", type=int, default=100_000, help="in the directory (%(default)s)")
    parser.add_argument("--artifacts-s3", type=int, default=2_000, help="on the S3 server (%(default)s)")
    parser.add_argument("--server", choices=("moto", "ceph"), default="moto", help="of the bucket (%(default)s)")
    parser.add_argument("--output", default=str(ROOT / "benchmarks/results/lineage.json"))
    options = parser.parse_args()
    output = Path(options.output)
    results = json.loads(output.read_text()) if output.exists() else {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as servers:
        for kind in options.stores:
            label, count, threads = ("directory", options.artifacts, 4)
            if kind == "s3":
                label, count, threads = (f"s3 {options.server}", options.artifacts_s3, 8)
            folder = Path(name, kind)
            folder.mkdir()
            url = f"{name}/store" if kind == "directory" else servers.enter_context(bucket(options.server, folder))
            print(f"{label}, {count} artifacts: median and longest, ms", flush=True)
            results[label] = measure(ArtifactStore.open(url), count, folder, threads)
            output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
