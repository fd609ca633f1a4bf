"""A million recorded samples: seconds of every query that the viewer makes, and the memory of the process that asks.

Writes the samples through the recorder's own tables (`PartTable`), 4,096 rows at a time, then asks in a fresh process.
Results go to `benchmarks/results/rollouts.json`; fails where a query takes a second or memory 500 MB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PER_PART = 4096
PROMPT, RESPONSE = 24, 48  # tokens, on average
WORDS = ["the", "answer", "is", "because", "therefore", "we", "add", "number", "twelve", "seven", "reverse", "letters"]
REPEATS = 5
SECONDS, MEGABYTES = 1.0, 500.0


def write(run: Path, samples: int, per_step: int) -> dict[str, float]:
    """Record `samples` samples; seconds and bytes that it took."""
    from relax_engine.observe.rollouts.media import MediaStore
    from relax_engine.observe.rollouts.parts import PartTable
    from relax_engine.observe.rollouts.tables import samples_table, training_table
    from relax_engine.stream.columns import Column, ColumnBatch
    from relax_engine.types import Sample, SampleStatus, WeightVersionSpan

    rng = np.random.default_rng(0)
    media = MediaStore(run / "rollouts" / "media", 0)
    tables = {name: PartTable(run / "rollouts" / name) for name in ("samples", "training")}
    started, cpu = time.perf_counter(), time.process_time()
    for first in range(0, samples, PER_PART):
        count = min(PER_PART, samples - first)
        step = first // per_step
        lengths = rng.integers(RESPONSE // 2, RESPONSE * 3 // 2, count).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        index = np.arange(first, first + count, dtype=np.int64)
        words = rng.integers(0, len(WORDS), (count, 12))
        rewards = rng.integers(0, 11, count).astype(np.float32) / 10
        made = [
            Sample(
                group_index=int(index[i]) // 8,
                index=int(index[i]),
                prompt=f"question {int(index[i]) // 8}",
                response=" ".join(WORDS[word] for word in words[i]) + f" {index[i]}",
                response_length=int(lengths[i]),
                reward={"score": float(rewards[i]), "format": float(i % 2)},
                weight_versions=[WeightVersionSpan(step, 0, int(lengths[i]))],
                status=SampleStatus.TRUNCATED if i % 50 == 0 else SampleStatus.COMPLETED,
                timings={"started": float(step), "generated": step + float(lengths[i]) / 100, "scored": step + 2.0},
            )
            for i in range(count)
        ]
        values = rng.normal(-1, 0.5, int(offsets[-1])).astype(np.float32)
        batch = ColumnBatch(
            {
                "tokens": Column(
                    rng.integers(0, 50_000, int(offsets[-1]) + PROMPT * count).astype(np.int32),
                    offsets + PROMPT * np.arange(count + 1),
                ),
                "response_lengths": Column.fixed(lengths),
                "loss_masks": Column(np.ones(len(values), np.uint8), offsets),
                "rollout_log_probs": Column(values, offsets),
                "raw_reward": Column.fixed(rewards),
                "rewards": Column.fixed(rewards - 0.5),
                "group_index": Column.fixed(index // 8),
                "sample_indices": Column.fixed(index),
                "first_version": Column.fixed(np.full(count, step, np.int32)),
                "last_version": Column.fixed(np.full(count, step, np.int32)),
                "advantages": Column(np.repeat(rewards - 0.5, lengths), offsets),
                "log_probs": Column(values + np.float32(0.01), offsets),
                "ref_log_probs": Column(values - np.float32(0.02), offsets),
            }
        )
        tables["samples"].append(samples_table(step, made, batch, step + 3.0, media))
        tables["training"].append(training_table(step, step + 1, batch, began=step + 3.0))
    files = list(run.rglob("*.parquet"))
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "megabytes": round(sum(file.stat().st_size for file in files) / 1e6, 1),
        "files": len(files),
    }


def ask(run: Path, samples: int, per_step: int, answer: Any) -> None:
    """Every kind of query, each several times; sends seconds and peak memory."""
    from relax_engine.observe.rollouts.query import Rollouts

    last = (samples - 1) // per_step
    middle = samples // 2 // PER_PART * PER_PART
    with Rollouts(run) as rollouts:
        queries: dict[str, Callable[[], Any]] = {
            "first page": lambda: rollouts.find(),
            "one step": lambda: rollouts.find([f"step={last // 2}"]),
            "highest reward": lambda: rollouts.find(sort="reward:desc"),
            "longest": lambda: rollouts.find(sort="response_length:desc"),
            "highest advantage": lambda: rollouts.find(sort="advantage:desc"),
            "log-prob gap of truncated ones": lambda: rollouts.find(["status=truncated"], sort="log_prob_gap:desc"),
            "reward part and length": lambda: rollouts.find(["reward.format=1", "response_length>60"], sort="reward"),
            "text in responses": lambda: rollouts.find([f"response~{samples // 3}"]),
            "text in responses, without a match": lambda: rollouts.find(["response~nowhere"]),
            "slowest generation": lambda: rollouts.find(sort="generation_seconds:desc"),
            "page 1000": lambda: rollouts.find(offset=50_000),
            "count with reward and advantage": lambda: rollouts.count(["reward>0.5", "advantage>0.2"]),
            "figures by step": rollouts.steps,
            "one sample": lambda: rollouts.sample(middle // per_step, middle),
            "one group": lambda: rollouts.group(middle // per_step, middle // 8),
        }
        found: dict[str, dict[str, float]] = {}
        for name, query in queries.items():
            seconds = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                assert query() or "without" in name, name
                seconds.append(time.perf_counter() - started)
            found[name] = {"median": round(statistics.median(seconds), 3), "slowest": round(max(seconds), 3)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer.send({"queries": found, "peak_megabytes": round(peak, 1)})


def main() -> int:
    """Write, ask, judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--per-step", type=int, default=4096)
    parser.add_argument("--run", type=Path, help="directory to keep the samples in; asked again where it has some")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = options.run or Path(temporary)
        written = None if (run / "rollouts").exists() else write(run, options.samples, options.per_step)
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=ask, args=(run, options.samples, options.per_step, theirs)
        )
        process.start()
        theirs.close()
        result = ours.recv()
        process.join(30)
    result = {"samples": options.samples, "written": written, **result}
    slowest = max(query["slowest"] for query in result["queries"].values())
    result["slowest_query"], result["bounds"] = slowest, {"seconds": SECONDS, "megabytes": MEGABYTES}
    path = Path(__file__).parent / "results" / "rollouts.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return int(slowest >= SECONDS or result["peak_megabytes"] >= MEGABYTES)


if __name__ == "__main__":
    raise SystemExit(main())
