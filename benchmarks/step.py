"""RL samples per CPU-second: this engine beside TRL's GRPOTrainer, same model, prompts and lengths.

    python benchmarks/step.py [--steps 80] [--repeats 3] [--out benchmarks/results/step.json]

Both train the same randomly initialised Qwen3 of 0.8 M parameters with GRPO on the same prompts, 8 prompts x 8
samples of at most 32 tokens a step (a random model rarely ends early, so nearly all have 32). CPU seconds are those
of whole process trees, this engine's Ray, Serve, engine and trainer processes included, from the end of step
`--warmup` to the end of the last step. Runs alternate; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PROMPTS, SAMPLES, NEW_TOKENS = 8, 8, 32
LEARNING_RATE = 1e-5
ROOT = Path(__file__).resolve().parents[1]


async def reward(args: Any, sample: Any) -> float:
    """A score that varies within a group and costs nothing: the share of distinct characters."""
    return score(sample.response)


def score(text: str) -> float:
    """Distinct characters over all characters; 0 for an empty text."""
    return len(set(text)) / max(len(text), 1)


def tree_cpu_seconds() -> float:
    """User and system time of this process and all its descendants, ended ones included."""
    import psutil

    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def run_relax(model: Path, prompts: Path, steps: int, warmup: int) -> dict[str, float]:
    """Colocate GRPO through the public `train`."""
    from relax_engine import RunConfig, train

    with tempfile.TemporaryDirectory() as run_dir:
        config = RunConfig.from_flat(
            hf_checkpoint=str(model),
            prompt_data=[str(prompts)],
            input_key="prompt",
            apply_chat_template=True,
            num_rollout=steps,
            rollout_batch_size=PROMPTS,
            n_samples_per_prompt=SAMPLES,
            rollout_max_response_len=NEW_TOKENS,
            rollout_max_context_len=128,
            max_tokens_per_gpu=16384,
            lr=LEARNING_RATE,
            weight_decay=0.0,
            offload_rollout=False,  # the peer's generation keeps its memory too
            custom_rm_path=f"{Path(__file__).resolve()}:reward",
            run_dir=run_dir,
        )
        log = Path(run_dir) / "metrics.jsonl"
        marks: dict[int, tuple[float, float]] = {}
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                count = len(log.read_text().splitlines()) if log.exists() else 0
                if count in (warmup, steps) and count not in marks:
                    marks[count] = (time.time(), tree_cpu_seconds())
                time.sleep(0.005)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        result = train(config)
        done.set()
        watcher.join()
    records = result.metrics
    return measurements(marks[warmup], marks[steps], steps - warmup, records["rollout/response_len/mean"])


def run_trl(model: Path, prompts: Path, steps: int, warmup: int) -> dict[str, float]:
    """TRL's GRPOTrainer with transformers generation, on one thread."""
    import pyarrow.parquet as pq
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    marks: dict[int, tuple[float, float]] = {}
    lengths: list[float] = []

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (warmup, steps):
                marks[state.global_step] = (time.time(), tree_cpu_seconds())

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "completions/mean_length" in logs:
                lengths.append(logs["completions/mean_length"])

    def rewards(completions: list[Any], **_: Any) -> list[float]:
        return [score(completion[0]["content"]) for completion in completions]

    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=PROMPTS * SAMPLES,
            num_generations=SAMPLES,
            max_completion_length=NEW_TOKENS,
            max_steps=steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        rows = pq.read_table(prompts, columns=["prompt"]).slice(0, PROMPTS * steps).to_pylist()
        trainer = GRPOTrainer(
            model=str(model),
            reward_funcs=rewards,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model),
            callbacks=[Marks()],
        )
        trainer.train()
    return measurements(marks[warmup], marks[steps], steps - warmup, statistics.mean(lengths))


def measurements(
    start: tuple[float, float], end: tuple[float, float], steps: int, mean_length: float
) -> dict[str, float]:
    """Rates between two marks of (time, CPU seconds)."""
    samples = steps * PROMPTS * SAMPLES
    wall, cpu = end[0] - start[0], end[1] - start[1]
    return {
        "samples": samples,
        "wall_s": wall,
        "cpu_s": cpu,
        "samples_per_cpu_s": samples / cpu,
        "samples_per_s": samples / wall,
        "cpu_s_per_step": cpu / steps,
        "mean_response_tokens": mean_length,
    }


RUNNERS = {"relax": run_relax, "trl": run_trl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--warmup", type=int, default=20, help="steps before measuring starts: Ray settles in them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/step.json")
    parser.add_argument("--one", choices=sorted(RUNNERS), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run = RUNNERS[args.one](args.work / "model", args.work / "prompts.parquet", args.steps, args.warmup)
        (args.work / "result.json").write_text(json.dumps(run))
        return
    with tempfile.TemporaryDirectory() as directory:
        results = compare(Path(directory), args)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(
        f"samples per CPU-second: relax {results['relax']:.1f}, TRL {results['trl']:.1f}, ratio {results['ratio']:.2f}"
    )


def compare(work: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Alternate both, and put medians beside the raw runs."""
    import importlib.metadata

    from data_prep.convert import convert
    from examples.tiny_math import make_data, make_model

    make_model.make_model(work / "model", seed=0)
    make_data.make_data(work / "data", seed=0)
    convert(work / "data/train.parquet", work / "prompts.parquet", format="verl")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in RUNNERS}
    for repeat in range(args.repeats):
        for name in RUNNERS:
            command = [sys.executable, __file__, "--one", name, "--work", str(work)]
            command += ["--steps", str(args.steps), "--warmup", str(args.warmup)]
            subprocess.run(command, check=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
            runs[name].append(json.loads((work / "result.json").read_text()))
            print(f"{name} {repeat}: {runs[name][-1]}", flush=True)
    medians = {name: statistics.median(run["samples_per_cpu_s"] for run in runs[name]) for name in RUNNERS}
    return {
        **medians,
        "ratio": medians["relax"] / medians["trl"],
        "unit": "samples per CPU-second of the whole process tree",
        "trl_version": importlib.metadata.version("trl"),
        "steps": args.steps,
        "warmup": args.warmup,
        "load1": os.getloadavg()[0],
        "runs": runs,
    }


if __name__ == "__main__":
    main()
