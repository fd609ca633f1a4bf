"""Throughput of a run whose engines go 1 -> 2 -> 4 -> 2 -> 1 while it trains.

    python benchmarks/scaling.py [--seconds 0.25] [--steps 8] [--out benchmarks/results/scaling.json]

A hybrid run, scaled by `relax elastic` as a person would. Each engine is a device of its own, by a lock and a sleep in
the generation function: it holds a sample for --seconds, so that generation is what a step waits for, and engines
that share cores do not share this time. Everything else is real: engines and what they sample, joins, drains, weight
syncs, training. A row's rate is of --steps steps, behind as many as were begun before its engines were all there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COUNTS = (1, 2, 4, 2, 1)
GROUPS, SAMPLES = 8, 2
BEGUN = 3
"""Steps whose samples may be older than a change: the one under way and those that `--max-staleness` lets run ahead."""

_DEADLINE_S = 600.0
_devices: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """One response by the engine that the run chose, which is busy with it for the simulated time."""
    from relax_engine.rollout.toolbox import engine, finalize

    async with _devices[f"{args.sglang_router_ip}:{args.sglang_router_port}"]:
        await asyncio.sleep(args.simulated_seconds_per_sample)
    answer = await engine.generate(sample.tokens)
    return finalize(sample, [*sample.tokens, *answer.ids], [1] * len(answer.ids), answer.log_probs)


def different(args: Any, sample: Any) -> float:
    """A reward that differs within every group."""
    return (sum(sample.tokens) % 11) / 10


class Run:
    """`relax train` in a process of its own, and its engines."""

    def __init__(self, work: Path, seconds: float) -> None:
        from relax_engine import RunConfig

        self.run_dir, self.log = work / "run", work / "train.log"
        settings = work / "simulated.yaml"
        settings.write_text(f"simulated_seconds_per_sample: {seconds}\n")
        config = RunConfig.from_flat(
            hf_checkpoint=str(work / "model"),
            prompt_data=[str(work / "prompts.parquet")],
            input_key="prompt",
            apply_chat_template=True,
            num_rollout=10_000,
            rollout_batch_size=GROUPS,
            n_samples_per_prompt=SAMPLES,
            rollout_max_response_len=16,
            rollout_max_context_len=128,
            max_tokens_per_gpu=4096,
            custom_generate_function_path=f"{Path(__file__).resolve()}:generate",
            custom_rm_path=f"{Path(__file__).resolve()}:different",
            custom_config_path=str(settings),
            hybrid=True,
            max_staleness=1,
            weight_sync_transport="object_store",
            weight_sync_url=str(work / "weights"),
            run_dir=str(self.run_dir),
        )
        (work / "run.yaml").write_text(config.to_yaml())
        command = [_relax(), "train", "--config", work / "run.yaml"]
        self.process = subprocess.Popen(
            command, stdout=self.log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def step_times(self) -> list[float]:
        """Seconds that each step so far took."""
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["perf/step_time"] for line in lines]

    def wait_for(self, steps: int) -> list[float]:
        """Step times, once there are so many."""
        deadline = time.monotonic() + _DEADLINE_S
        while len(times := self.step_times()) < steps:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"step {steps} did not come; the run's last words:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)
        return times

    def scale(self, before: int, after: int) -> None:
        """Have `after` engines, where there are `before`."""
        if before != after:
            command = "scale-out" if after > before else "scale-in"
            asked = [_relax(), "elastic", command, "--run-dir", self.run_dir, "--replicas", str(after)]
            subprocess.run(asked, check=True, stdout=subprocess.DEVNULL, timeout=_DEADLINE_S)

    def stop(self) -> None:
        """End the run and all its processes."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def measure(work: Path, seconds: float, steps: int) -> list[dict[str, Any]]:
    """Samples per second with each count of engines."""
    run = Run(work, seconds)
    rows: list[dict[str, Any]] = []
    try:
        before = 1
        for count in COUNTS:
            run.scale(before, count)
            begun = len(run.step_times()) + BEGUN
            times = run.wait_for(begun + steps)[begun : begun + steps]
            rate = GROUPS * SAMPLES * steps / sum(times)
            rows.append({"engines": count, "samples_per_s": rate, "step_s": times, "load1": os.getloadavg()[0]})
            print(f"{count} engines: {rate:.2f} samples/s, {rate / rows[0]['samples_per_s']:.2f} of one", flush=True)
            before = count
    finally:
        run.stop()
    return rows


def _relax() -> Path:
    return Path(sys.executable).parent / "relax"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.25, help="simulated time of an engine for a sample")
    parser.add_argument("--steps", type=int, default=8, help="measured steps with each count of engines")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/scaling.json")
    args = parser.parse_args()

    from data_prep.convert import convert
    from examples.tiny_math import make_data, make_model

    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        make_model.make_model(work / "model", seed=0)
        make_data.make_data(work / "data", seed=0, train_rows=400, heldout_rows=1, sft_rows=1)
        convert(str(work / "data/train.parquet"), work / "prompts.parquet", format="verl")
        rows = measure(work, args.seconds, args.steps)
    args.out.write_text(json.dumps({"seconds": args.seconds, "steps": args.steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
