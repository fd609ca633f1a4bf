"""What it costs to observe a run: CPU-seconds of recording, metrics, events and phases, against those of a step itself.

Everything that a run does per step to be observed is done for real, by the run's own parts: every sample is recorded
twice (as sampled and as trained), metrics are written, phases are noted, the follower reads the log. What a step itself
takes is simulated at the rate that `benchmarks/step.py` measured (samples per CPU-second of the whole process tree).
Two sizes: the demo's, and 10,000 samples a step. Also measured: how long those are held who train and sample.

Results go to `benchmarks/results/observe.json`; fails where the cost is 1 % of the step or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from relax_engine.observe.journal import Journal
from relax_engine.observe.metrics import MetricsLog
from relax_engine.observe.rollouts.media import MediaStore
from relax_engine.observe.rollouts.recorder import Recorder
from relax_engine.observe.rollouts.tables import samples_table, training_table
from relax_engine.observe.series import RunMetrics
from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.types import Sample, SampleStatus, WeightVersionSpan

RESULTS = Path(__file__).parent / "results"
BOUND = 0.01
METRICS = 80
PROMPT, LONGEST = 14, 32  # tokens, the demo's


def step_rate() -> float:
    """Samples per CPU-second of a whole training step, as measured here."""
    results = json.loads((RESULTS / "step.json").read_text())
    return float(results["relax"])


def make_step(samples: int, step: int, rng: np.random.Generator) -> tuple[list[Sample], ColumnBatch]:
    """Samples as the rollout has them, and columns as the actor has them; not part of the cost."""
    lengths = rng.integers(2, LONGEST, samples).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    index = np.arange(step * samples, (step + 1) * samples, dtype=np.int64)
    values = rng.normal(-1, 0.5, int(offsets[-1])).astype(np.float32)
    rewards = rng.integers(0, 2, samples).astype(np.float32)
    prompts = [[{"role": "user", "content": f"reverse word{i}"}] for i in range(samples // 8 + 1)]
    made = [
        Sample(
            group_index=int(index[i]) // 8,
            index=int(index[i]),
            prompt=prompts[i // 8],
            response="".join(chr(97 + (i + j) % 26) for j in range(int(lengths[i]))),
            response_length=int(lengths[i]),
            reward=float(rewards[i]),
            label="drow",
            metadata={"data_source": "words", "extra_info": {"index": i}},
            weight_versions=[WeightVersionSpan(step, 0, int(lengths[i]))],
            status=SampleStatus.COMPLETED,
            timings={"started": 1.0, "generated": 2.0, "scored": 3.0},
        )
        for i in range(samples)
    ]
    tokens = rng.integers(0, 300, int(offsets[-1]) + PROMPT * samples).astype(np.int32)
    return made, ColumnBatch(
        {
            "tokens": Column(tokens, offsets + PROMPT * np.arange(samples + 1)),
            "response_lengths": Column.fixed(lengths),
            "loss_masks": Column(np.ones(len(values), np.uint8), offsets),
            **{name: Column(values, offsets) for name in ("rollout_log_probs", "log_probs", "advantages")},
            "raw_reward": Column.fixed(rewards),
            "rewards": Column.fixed(rewards - 0.5),
            "group_index": Column.fixed(index // 8),
            "sample_indices": Column.fixed(index),
            "first_version": Column.fixed(np.full(samples, step, np.int32)),
            "last_version": Column.fixed(np.full(samples, step, np.int32)),
        }
    )


def observe(run: Path, samples: int, steps: int) -> dict[str, float]:
    """Seconds of observing `steps` steps: CPU of the process, and how long who trains and who samples were held."""
    rng = np.random.default_rng(0)
    made = [make_step(samples, step, rng) for step in range(steps)]
    recorders = [Recorder(run / "rollouts" / name) for name in ("samples", "training")]
    media = MediaStore(run / "rollouts" / "media", 0)
    journal, log, follower = Journal(run), MetricsLog(run / "metrics.jsonl"), RunMetrics(run)
    metrics = {f"train/metric_{i}": i / 7 for i in range(METRICS)}
    phases = [("generate", 0, 1.0, 2.0)] * 20
    held: list[float] = []
    cpu, wall = time.process_time(), time.perf_counter()
    for step, (group, batch) in enumerate(made):
        started = time.perf_counter()
        recorders[0].offer(samples, partial(samples_table, step, group, batch, 4.0, media))
        recorders[1].offer(samples, partial(training_table, step, step, batch, 5.0))
        held.append(time.perf_counter() - started)
        log.write(step, metrics)
        journal.event({"kind": "phases", "role": "actor", "phases": phases})
        journal.state({"status": "running", "stream": metrics})
        follower.refresh()
    for recorder in recorders:
        recorder.close(300.0)
    result = {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "held_seconds_median": statistics.median(held),
        "held_seconds_max": max(held),
        "dropped": float(sum(recorder.dropped for recorder in recorders)),
    }
    return result


def main() -> int:
    """Both sizes, several times each; the median counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rate = step_rate()
    results: dict[str, Any] = {"step_samples_per_cpu_second": rate, "bound": BOUND, "sizes": {}}
    with tempfile.TemporaryDirectory() as warm:
        observe(Path(warm), 64, 4)  # imports and first allocations
    for name, samples, steps in (("demo", 128, 60), ("10,000 samples a step", 10_000, 3)):
        runs = []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as directory:
                runs.append(observe(Path(directory), samples, steps))
        median = sorted(runs, key=lambda run: run["cpu_seconds"])[len(runs) // 2]
        step_seconds = samples * steps / rate
        results["sizes"][name] = {
            "samples_per_step": samples,
            "steps": steps,
            **{key: round(value, 6) for key, value in median.items()},
            "microseconds_per_sample": round(1e6 * median["cpu_seconds"] / (samples * steps), 2),
            "step_cpu_seconds": round(step_seconds, 3),
            "share_of_step": round(median["cpu_seconds"] / step_seconds, 5),
        }
    (RESULTS / "observe.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))
    shares = [size["share_of_step"] for size in results["sizes"].values()]
    return int(max(shares) >= BOUND or any(size["dropped"] for size in results["sizes"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
