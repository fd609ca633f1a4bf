"""Step time of the modes when generation and training take the same device time T.

    python benchmarks/overlap.py [--seconds 5] [--steps 5] [--out benchmarks/results/overlap.json]

Device time is simulated by sleeping in two user functions: the reward (`--custom-rm-path`) holds the one generation
device for T / samples a sample, the correction (`--custom-tis-function-path`) holds the training device for as long a
sample. Everything else is real: engine, stream, Megatron, weight sync. Taking turns costs 2 T a step; at best all of
it overlaps and a step costs T.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GROUPS, SAMPLES, PARTS, WARMUP = 8, 2, 4, 2
CASES: dict[str, dict[str, Any]] = {
    "colocate": {},
    "hybrid, on-policy": {"hybrid": True, "num_iters_per_train_update": PARTS},
    "hybrid, staleness 1": {"hybrid": True, "max_staleness": 1, "num_iters_per_train_update": PARTS},
    "fully async, staleness 1": {
        "fully_async": True,
        "max_staleness": 1,
        "resource": {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]},
        "num_iters_per_train_update": PARTS,
    },
}
BASELINE = "colocate"

_generation_device = asyncio.Lock()


async def generation_time(args: Any, sample: Any) -> float:
    """A reward that takes a sample's share of the generation device's time; any number will do."""
    async with _generation_device:
        await asyncio.sleep(args.simulated_seconds_per_sample)
    return float(sum(sample.tokens) % 11)


def training_time(args: Any, *, pg_loss: Any, loss_masks: list[Any], **_: Any) -> tuple[Any, list[Any], dict[str, Any]]:
    """A correction that corrects nothing and takes the training device's time for every sample."""
    time.sleep(args.simulated_seconds_per_sample * len(loss_masks))
    return pg_loss, loss_masks, {}


def run(work: Path, name: str, seconds: float, steps: int) -> dict[str, Any]:
    """Train in one mode; step times after the warm-up, and how training and generation lie in time."""
    from relax_engine import RunConfig, train

    run_dir = work / name.replace(" ", "_").replace(",", "")
    settings = work / "simulated.yaml"
    settings.write_text(f"simulated_seconds_per_sample: {seconds / (GROUPS * SAMPLES)}\n")
    config = RunConfig.from_flat(
        hf_checkpoint=str(work / "model"),
        prompt_data=[str(work / "prompts.parquet")],
        input_key="prompt",
        apply_chat_template=True,
        num_rollout=WARMUP + steps,
        rollout_batch_size=GROUPS,
        n_samples_per_prompt=SAMPLES,
        rollout_max_response_len=16,
        rollout_max_context_len=128,
        max_tokens_per_gpu=4096,
        custom_rm_path=f"{Path(__file__).resolve()}:generation_time",
        custom_tis_function_path=f"{Path(__file__).resolve()}:training_time",
        custom_config_path=str(settings),
        run_dir=str(run_dir),
        **CASES[name],
    )
    result = train(config)
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    times = [record["perf/step_time"] for record in records[WARMUP:]]
    timeline = json.loads((run_dir / "timeline.json").read_text())
    return {
        "step_s": statistics.mean(times),
        "step_s_all": times,
        "step_over_t": statistics.mean(times) / seconds,
        "staleness": result.staleness_histogram,
        "first_gradient_before_last_sample_s": lead(timeline),
    }


def lead(timeline: list[dict[str, Any]]) -> float:
    """Seconds from the first gradient of the run's first partition to the end of that partition's last sample."""
    gradient = min(phase["start"] for phase in timeline if (phase["role"], phase["name"]) == ("actor", "train"))
    rewards = sorted(
        (phase for phase in timeline if (phase["role"], phase["name"]) == ("rollout", "reward")),
        key=lambda phase: phase["end"],
    )
    # One request a group, or one for all groups of a partition.
    partition = rewards[:GROUPS] if len(rewards) >= 2 * GROUPS else rewards[:1]
    return float(partition[-1]["end"] - gradient)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="T, the device time of generation and of training")
    parser.add_argument("--steps", type=int, default=5, help="measured steps, behind two of warm-up")
    parser.add_argument("--only", choices=sorted(CASES), action="append", help="these cases, and colocate")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/overlap.json")
    args = parser.parse_args()

    from data_prep.convert import convert
    from examples.tiny_math import make_data, make_model

    results: dict[str, Any] = {"seconds": args.seconds, "steps": args.steps, "parts": PARTS}
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        make_model.make_model(work / "model", seed=0)
        make_data.make_data(work / "data", seed=0, train_rows=400, heldout_rows=1, sft_rows=1)
        convert(str(work / "data/train.parquet"), work / "prompts.parquet", format="verl")
        for name in [*(args.only or [case for case in CASES if case != BASELINE]), BASELINE]:
            results[name] = run(work, name, args.seconds, args.steps) | {"load1": os.getloadavg()[0]}
            args.out.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"{name}: {results[name]['step_s']:.2f} s a step, {results[name]['step_over_t']:.2f} T; first gradient "
                f"{results[name]['first_gradient_before_last_sample_s']:.2f} s before the last sample",
                flush=True,
            )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
