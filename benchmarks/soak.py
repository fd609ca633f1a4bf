"""Memory over many steps: the resident size of every process of a fully-async run, and the rows left in the stream.

    python benchmarks/soak.py [--steps 500] [--out benchmarks/results/soak.json]

A model of a million parameters, 16 samples of 10 tokens a step, every role as a service. Each process is sampled twice
a second; its slope is the median of the slopes between any two samples (Theil-Sen) of the second half of the run, in
which caches are full. Exits with 1 when a process grows by more than --limit MiB per 1,000 steps, or when the stream
does not end empty.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from array import array
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
_SAMPLE_S = 0.5
_MIB = 1 << 20


def reward(args: Any, sample: Any) -> float:
    """Different within every group, a function of the response alone."""
    return (sum(sample.tokens) % 11) / 10


class MemoryLog(threading.Thread):
    """Resident size of this process and its descendants, twice a second, by process id."""

    def __init__(self, metrics: Path) -> None:
        super().__init__(daemon=True)
        self.metrics = metrics
        self.names: dict[int, str] = {}
        self.samples: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        """Steps done and bytes, in turn."""
        self.done = threading.Event()

    def run(self) -> None:
        steps = position = 0
        while not self.done.wait(_SAMPLE_S):
            if self.metrics.exists():
                with self.metrics.open("rb") as file:
                    file.seek(position)
                    new = file.read()
                steps, position = steps + new.count(b"\n"), position + len(new)
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    self.samples[process.pid].extend((steps, process.memory_info().rss))
                    self.names[process.pid] = name_of(process)
                except psutil.Error:
                    continue

    def slopes(self, steps: int) -> dict[str, dict[str, Any]]:
        """MiB per 1,000 steps over the second half, for every process that lived through it, and the way there."""
        found: dict[str, dict[str, Any]] = {}
        for pid, samples in self.samples.items():
            series = np.array(samples, float).reshape(-1, 2)
            # The run ends with the last step; what comes after it is its end.
            half = series[(series[:, 0] >= steps // 2) & (series[:, 0] < steps)]
            if len(half) < 10 or np.ptp(half[:, 0]) < steps / 4:
                continue
            tenths = [series[series[:, 0] * 10 // steps == tenth, 1] for tenth in range(10)]
            found[f"{self.names[pid]} ({pid})"] = {
                "rss_mib": round(float(np.median(half[:, 1])) / _MIB, 1),
                "mib_per_1000_steps": round(theil_sen(half) * 1000 / _MIB, 2),
                "rss_mib_by_tenth": [round(float(np.median(tenth)) / _MIB, 1) for tenth in tenths if len(tenth)],
            }
        return dict(sorted(found.items(), key=lambda item: -item[1]["mib_per_1000_steps"]))


def theil_sen(points: np.ndarray) -> float:
    """Median slope between any two of the points `[n, 2]`, which a short peak does not move."""
    first, second = np.triu_indices(len(points), 1)
    dx, dy = (points[second] - points[first]).T
    return float(np.median(dy[dx > 0] / dx[dx > 0]))


def name_of(process: psutil.Process) -> str:
    """What the process is: Ray's title without the method, or the module that it runs."""
    line = process.cmdline()
    if not line:
        return process.name()
    if line[0].startswith("ray::"):
        return line[0].split()[0].split(".")[0]
    if process.pid == os.getpid():
        return "driver"
    module = re.search(r"relax_engine(?:\.\w+)+", " ".join(line))
    return module.group() if module else Path(line[0]).name


def soak(steps: int) -> dict[str, Any]:
    """Run, and say how memory developed."""
    from data_prep.convert import convert
    from examples.tiny_math.make_data import make_data
    from examples.tiny_math.make_model import make_model
    from relax_engine import RunConfig, train
    from relax_engine.observe.metrics import read_metrics

    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        raw = make_data(work / "raw", train_rows=300, heldout_rows=1, sft_rows=1)
        convert(str(raw["train"]), work / "train.parquet")
        config = RunConfig.from_flat(
            hf_checkpoint=str(make_model(work / "model")),
            prompt_data=[str(work / "train.parquet")],
            input_key="prompt",
            label_key="label",
            apply_chat_template=True,
            run_dir=str(work / "run"),
            save=str(work / "checkpoints"),
            save_interval=max(1, steps // 10),
            max_actor_ckpt_to_keep=2,
            num_rollout=steps,
            rollout_batch_size=4,
            n_samples_per_prompt=4,
            rollout_max_prompt_len=32,
            rollout_max_response_len=10,
            rollout_shuffle=True,
            max_tokens_per_gpu=2048,
            custom_rm_path=f"{Path(__file__).resolve()}:reward",
            lr=1e-4,
            fully_async=True,
            max_staleness=1,
            use_fault_tolerance=True,
            use_kl_loss=True,
            kl_loss_coef=0.01,
            resource={
                "actor": [1, 1],
                "rollout": [1, 1],
                "actor_fwd": [1, 1],
                "reference": [1, 1],
                "advantages": [1, 0],
            },
        )
        log = MemoryLog(work / "run" / "metrics.jsonl")
        log.start()
        started = time.time()
        train(config)
        log.done.set()
        log.join()
        last = read_metrics(work / "run" / "metrics.jsonl")[-1]
        return {
            "steps": steps,
            "seconds": round(time.time() - started, 1),
            "load1": os.getloadavg()[0],
            "rows_left": last["stream/in_flight"],
            "bytes_left": last["stream/nbytes"],
            "files_left": len([path for path in (work / "run" / "stream").rglob("*.block")]),
            "processes": log.slopes(steps),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--limit", type=float, default=8.0, help="MiB per 1,000 steps that a process may grow by")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/soak.json")
    args = parser.parse_args()
    result = soak(args.steps)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, process in result["processes"].items():
        print(f"{process['mib_per_1000_steps']:8.2f} MiB per 1,000 steps, {process['rss_mib']:7.1f} MiB  {name}")
    grows = {n: p for n, p in result["processes"].items() if p["mib_per_1000_steps"] > args.limit}
    print(f"{result['steps']} steps in {result['seconds']} s; rows left: {result['rows_left']:g}")
    print(f"growing: {', '.join(grows) or 'none'}")
    sys.exit(bool(grows or result["rows_left"] or result["files_left"]))


if __name__ == "__main__":
    main()
