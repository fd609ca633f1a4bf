"""What recording costs a run that trains: the demo's training with and without `--record-rollouts`, in pairs.

Pairs alternate which of the two comes first, and each has the median time of its steps, the first two left out. What
counts is the median of the pairs' ratios; their spread says how much of it is the machine's noise. Everything is real:
embedded engines, rewards, Megatron. What `benchmarks/observe.py` measures in CPU-seconds alone is here in wall time,
with whatever it takes from those who train.

Results go to `benchmarks/results/observe_run.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from relax_engine.observe.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "observe_run.json"
CONFIG = ROOT / "examples" / "tiny_math" / "tiny_math.yaml"
LEFT_OUT = 2
DEADLINE_S = 300


def step_seconds(inputs: Path, run_dir: Path, steps: int, *, record: bool) -> float:
    """Median seconds of a step of one run."""
    command = [Path(sys.executable).parent / "relax", "train", "--config", CONFIG, "--run-dir", run_dir]
    command += ["--hf-checkpoint", inputs / "model", "--prompt-data", inputs / "data" / "train.parquet"]
    command += ["--num-rollout", str(steps), "--lr-warmup-iters", "0"]
    command += ["--save", run_dir / "checkpoints", "--save-interval", str(steps)]
    command += ["--record-rollouts" if record else "--no-record-rollouts"]
    subprocess.run([str(word) for word in command], check=True, timeout=DEADLINE_S, cwd=ROOT, capture_output=True)
    assert (run_dir / "rollouts").exists() is record
    return statistics.median(line["perf/step_time"] for line in read_metrics(run_dir / "metrics.jsonl")[LEFT_OUT:])


def main() -> int:
    """Measure all pairs."""
    from examples.tiny_math.make_data import make_data
    from examples.tiny_math.make_model import make_model

    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    began = time.monotonic()
    pairs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        inputs = Path(directory)
        make_data(inputs / "data", seed=0)
        make_model(inputs / "model", seed=0)
        for number in range(options.pairs):
            order = (True, False) if number % 2 else (False, True)
            found = {
                record: step_seconds(inputs, inputs / f"run-{number}-{record}", options.steps, record=record)
                for record in order
            }
            pairs.append({"with": round(found[True], 4), "without": round(found[False], 4)})
    ratios = [pair["with"] / pair["without"] for pair in pairs]
    result = {
        "steps": options.steps,
        "seconds_of_a_step": pairs,
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_least": round(min(ratios), 4),
        "ratio_most": round(max(ratios), 4),
        "seconds_in_all": round(time.monotonic() - began),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
