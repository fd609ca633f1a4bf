"""What each algorithm, mode and correction learns on the demo task, from the demo's supervised model.

    python benchmarks/learning.py                          # every algorithm, in colocate mode
    python benchmarks/learning.py --study modes            # GRPO in every mode
    python benchmarks/learning.py --study staleness        # naive PPO, TIS and decoupled PPO at lags 0, 1, 2, 4, 8
    python benchmarks/learning.py --only gspo ppo --steps 20 --seeds 0 1 2

The task is `examples/tiny_math`: a Qwen3 of 0.8 M parameters that spells words backwards. A run is `--steps` steps of
16 prompts x 8 samples through `relax_engine.train`, in a process of its own; *before* and *after* are the mean rewards
of 512 held-out prompts x 4 responses at temperature 1. A seed has data, a starting model and runs of its own; a table
shows means over the seeds that all its rows have. Data and starting models are made once, in `--work`. Runs whose
settings have not changed are taken from `--out`, which gets each run as it ends; `--fresh` runs them again.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLIP = {"eps_clip": 0.2, "eps_clip_high": 0.28}
CENTRED = {"disable_grpo_std_normalization": True}
WHITENED = {"normalize_advantages": True}
CRITIC = {"resource": {"actor": [1, 1], "critic": [1, 1], "rollout": [1, 1]}, "num_critic_only_steps": 5}

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {**CLIP, **CENTRED},
    "grpo, divided by the group's std": CLIP,
    "grpo, constant length (Dr. GRPO)": {**CLIP, **CENTRED, "loss_constant_length": 6},
    "gspo": {**CENTRED, "eps_clip": 3e-4, "eps_clip_high": 4e-4},
    "sapo": CENTRED,
    "cispo": {**CENTRED, "eps_clip": 1.0, "eps_clip_high": 0.28},
    "m2po": CENTRED,
    "rloo": {"calculate_per_token_loss": True},
    "reinforce_plus_plus": {**CLIP, **WHITENED, "lr": 1.5e-4},
    "reinforce_plus_plus_baseline": {**CLIP, **WHITENED, "lr": 1.5e-4},
    "ppo": {**CLIP, **WHITENED, **CRITIC, "lr": 1.5e-4, "critic_lr": 1e-3},
}
"""Algorithm, with a variant after the comma, and its flags. Whitened advantages are larger: half the learning rate."""

ASYNC = {
    "fully_async": True,
    "resource": {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]},
}
MODES: dict[str, dict[str, Any]] = {
    "colocate": {},
    "hybrid": {"hybrid": True, "max_staleness": 2},
    "hybrid, as if all samples were fresh": {"hybrid": True, "max_staleness": 2, "true_on_policy_mode": True},
    "fully async": {**ASYNC, "max_staleness": 2},
}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "naive": {"use_rollout_logprobs": True},
    "TIS": {"use_tis": True},
    "decoupled": {"use_decoupled_ppo": True},
}
"""The clip is around the policy that sampled, around the trainer's old one, or around the present one; the last two
are weighted by that policy over the one that sampled."""
LAGS = (0, 1, 2, 4, 8)
WARM_STEPS = 72
COLUMNS = {
    "input_key": "prompt",
    "label_key": "label",
    "metadata_key": "metadata",
    "apply_chat_template": True,
    "custom_rm_path": "examples.tiny_math.reward_tiny_math.reward_func",
}
TASK = {
    **COLUMNS,
    "rollout_batch_size": 16,
    "n_samples_per_prompt": 8,
    "rollout_shuffle": True,
    "rollout_max_prompt_len": 48,
    "rollout_max_response_len": 12,
    "n_samples_per_eval_prompt": 4,
    "lr": 3e-4,
    "min_lr": 3e-5,
    "lr_decay_style": "linear",
    "weight_decay": 0.0,
    "adam_beta2": 0.98,
    "clip_grad": 1.0,
    "max_tokens_per_gpu": 4096,
}


@dataclass(frozen=True)
class Run:
    """One training run: its place in a table, and the flags that make it differ from `TASK`."""

    study: str
    name: str
    flags: dict[str, Any]

    def settings(self, steps: int, seed: int) -> dict[str, Any]:
        """All flags but the paths."""
        schedule = {"num_rollout": steps, "lr_warmup_iters": min(10, steps // 4), "seed": seed, "rollout_seed": seed}
        return {**TASK, **schedule, **self.flags}


def runs(studies: list[str], only: list[str]) -> Iterator[Run]:
    """The runs of the chosen studies; if `only` has names, those of that algorithm, mode, correction or whole name."""

    def wanted(*names: str) -> bool:
        return not only or any(name in only for name in names)

    for name, flags in ALGORITHMS.items() if "algorithms" in studies else ():
        algorithm = name.partition(",")[0]
        if wanted(algorithm, name):
            yield Run("algorithms", name, {"advantage_estimator": algorithm, **flags})
    for name, flags in MODES.items() if "modes" in studies else ():
        if wanted(name.partition(",")[0], name):
            yield Run("modes", name, {**CLIP, **CENTRED, **flags})
    for name, flags in CORRECTIONS.items() if "staleness" in studies else ():
        for lag in LAGS:
            if wanted(name, f"{name}, lag {lag}"):
                yield Run(
                    "staleness", f"{name}, lag {lag}", {**CLIP, **CENTRED, **ASYNC, **flags, "max_staleness": lag}
                )


def prepare(work: Path, seed: int) -> dict[str, Path]:
    """Prompts, and the model after the demo's supervised warm start; made once per seed."""
    from data_prep.convert import convert
    from examples.tiny_math.make_data import make_data
    from examples.tiny_math.make_model import make_model
    from relax_engine import RunConfig, export_checkpoint, train

    home = work / f"seed-{seed}"
    paths = {name: home / f"{name}.parquet" for name in ("train", "heldout", "sft")}
    start = home / "start"
    if start.exists():
        return {**paths, "start": start}
    make_data(home / "raw", seed=seed)
    make_model(home / "base", seed=seed)
    for name, path in paths.items():
        convert(home / "raw" / f"{name}.parquet", path, format="verl")
    supervised = {name: value for name, value in TASK.items() if name not in ("custom_rm_path", "n_samples_per_prompt")}
    supervised |= {
        "loss_type": "sft",
        "num_rollout": WARM_STEPS,
        "rollout_batch_size": 128,
        "global_batch_size": 128,
        "lr": 2e-3,
        "min_lr": 0.0,
        "lr_decay_style": "constant",
        "lr_warmup_iters": 20,
        "hf_checkpoint": str(home / "base"),
        "prompt_data": [str(paths["sft"])],
        "save": str(home / "warm"),
        "save_interval": WARM_STEPS,
        "run_dir": str(home / "warm-run"),
        "seed": seed,
        "rollout_seed": seed,
    }
    result = train(RunConfig.from_flat(**supervised))
    partial = home / "start.partial"
    export_checkpoint(str(result.checkpoint_dir), partial, origin_hf_dir=home / "base", force=True)
    partial.rename(start)
    return {**paths, "start": start}


def heldout(model: Path, prompts: Path, seed: int) -> dict[str, float]:
    """Mean rewards of `model` on the held-out prompts."""
    from relax_engine import RunConfig, evaluate

    changes = {"hf_checkpoint": str(model), "eval_prompt_data": {"heldout": [str(prompts)]}, "rollout_seed": seed}
    (result,) = evaluate(RunConfig.from_flat(**{**TASK, **changes}))
    return {"sampled": result.accuracy, "greedy": result.greedy_accuracy}


def execute(settings: dict[str, Any], paths: dict[str, Path], work: Path, seed: int) -> dict[str, Any]:
    """Train once and evaluate what came of it."""
    from relax_engine import RunConfig, export_checkpoint, train

    shutil.rmtree(work, ignore_errors=True)
    config = RunConfig.from_flat(
        **settings,
        hf_checkpoint=str(paths["start"]),
        prompt_data=[str(paths["train"])],
        save=str(work / "checkpoints"),
        save_interval=settings["num_rollout"],
        run_dir=str(work / "run"),
    )
    result = train(config)
    export_checkpoint(str(result.checkpoint_dir), work / "model", origin_hf_dir=paths["start"], force=True)
    counts = result.staleness_histogram
    return {
        "reward_curve": [round(value, 4) for value in result.reward_curve],
        "after": heldout(work / "model", paths["heldout"], seed),
        "mean_lag": sum(lag * count for lag, count in counts.items()) / max(sum(counts.values()), 1),
        "staleness_histogram": counts,
        "logprob_max_abs_diff": result.logprob_max_abs_diff,
        "seconds": round(result.wall_seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies = ("algorithms", "modes", "staleness")
    parser.add_argument("--study", nargs="+", choices=studies, default=["algorithms"])
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="algorithms, modes, corrections, or whole names of runs",
    )
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--fresh", action="store_true", help="run again what is in --out already")
    parser.add_argument("--work", type=Path, default=ROOT / "build/learning")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/learning.json")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/staleness.svg")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return run_one(args.one)
    results = json.loads(args.out.read_text()) if args.out.exists() else {"runs": {}}
    for run, seed in itertools.product(runs(args.study, args.only), args.seeds):
        key = f"{run.study}: {run.name}, seed {seed}"
        settings = run.settings(args.steps, seed)
        old = results["runs"].get(key)
        if args.fresh or old is None or old["settings"] != settings:
            results["runs"][key] = {"settings": settings, **in_a_process(settings, args.work, seed)}
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(results, indent=1) + "\n")
    for study in args.study:
        print(table(study, results["runs"]))
    if "staleness" in args.study:
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        args.plot.write_text(plot(results["runs"]))


def in_a_process(settings: dict[str, Any], work: Path, seed: int) -> dict[str, Any]:
    """Prepare, run and evaluate in a fresh interpreter; its output goes to a log beside the run."""
    work.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    request, log = work / f"{name}.json", work / f"{name}.log"
    request.write_text(json.dumps({"settings": settings, "work": str(work), "name": name, "seed": seed}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    with log.open("w") as output:
        code = subprocess.run(
            [sys.executable, __file__, "--one", str(request)], env=environment, cwd=ROOT, stdout=output, stderr=output
        ).returncode
    if code:
        raise SystemExit(f"the run failed with exit code {code}; see {log}")
    outcome: dict[str, Any] = json.loads(request.read_text())["outcome"]
    return outcome


def run_one(request: Path) -> None:
    """The part of a run that has a process of its own; adds the outcome to the request."""
    asked = json.loads(request.read_text())
    work, seed = Path(asked["work"]), asked["seed"]
    paths = prepare(work, seed)
    start = work / f"seed-{seed}" / "before.json"
    if not start.exists():
        start.write_text(json.dumps(heldout(paths["start"], paths["heldout"], seed)))
    outcome = execute(asked["settings"], paths, work / asked["name"], seed)
    asked["outcome"] = {"before": json.loads(start.read_text()), **outcome}
    request.write_text(json.dumps(asked))


def by_name(study: str, results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of one study by name, in the order of its table, over the seeds that all of them have.

    Seeds start from different models, so means over different seeds could not be compared.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {run.name: {} for run in runs([study], [])}
    for key, outcome in results.items():
        name, _, seed = key.removeprefix(f"{study}: ").rpartition(", seed ")
        if key.startswith(f"{study}: ") and name in found:
            found[name][seed] = outcome
    present = {name: seeds for name, seeds in found.items() if seeds}
    shared = set.intersection(*(set(seeds) for seeds in present.values())) if present else set()
    return {name: [seeds[seed] for seed in sorted(shared)] for name, seeds in present.items() if shared}


def sampled(runs_of_seeds: list[dict[str, Any]]) -> list[float]:
    """Held-out reward after training, for each seed."""
    return [run["after"]["sampled"] for run in runs_of_seeds]


def table(study: str, results: dict[str, Any]) -> str:
    """One study as a Markdown table of means over seeds."""
    lines = [
        f"| {study} | seeds | sampled before -> after | gain | greedy before -> after | last 10 steps | mean lag |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in by_name(study, results).items():
        before, after, greedy_before, greedy, last, lag = (
            statistics.mean(values)
            for values in (
                [run["before"]["sampled"] for run in found],
                sampled(found),
                [run["before"]["greedy"] for run in found],
                [run["after"]["greedy"] for run in found],
                [statistics.mean(run["reward_curve"][-10:]) for run in found],
                [run["mean_lag"] for run in found],
            )
        )
        lines.append(
            f"| {name} | {len(found)} | {before:.3f} -> {after:.3f} | {after - before:+.3f} "
            f"| {greedy_before:.3f} -> {greedy:.3f} | {last:.3f} | {lag:.2f} |"
        )
    return "\n".join(lines) + "\n"


def plot(results: dict[str, Any]) -> str:
    """Held-out reward over the lag, as SVG: a line through the means of each correction, a point for each seed."""
    width, height, margin = 560, 320, 48
    colours = dict(zip(CORRECTIONS, ("#b3261e", "#0b57d0", "#146c2e"), strict=True))
    found = by_name("staleness", results)
    points = {
        name: [(index, sampled(found[key])) for index, lag in enumerate(LAGS) if (key := f"{name}, lag {lag}") in found]
        for name in CORRECTIONS
    }

    def place(index: int, value: float) -> tuple[float, float]:
        across = margin + index * (width - 2 * margin) / (len(LAGS) - 1)
        return across, height - margin - value * (height - 2 * margin)

    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-size='12'>"]
    parts.append(f"<rect width='{width}' height='{height}' fill='white'/>")
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(0, value)
        parts.append(f"<line x1='{x}' x2='{width - margin}' y1='{y}' y2='{y}' stroke='#ddd'/>")
        parts.append(f"<text x='{x - 8}' y='{y + 4}' text-anchor='end'>{value:.2f}</text>")
    for index, lag in enumerate(LAGS):
        parts.append(f"<text x='{place(index, 0)[0]}' y='{height - margin + 18}' text-anchor='middle'>{lag}</text>")
    parts.append(f"<text x='{width / 2}' y='{height - 8}' text-anchor='middle'>largest lag in weight versions</text>")
    parts.append(f"<text x='{margin}' y='20'>held-out reward after training</text>")
    for row, (name, line) in enumerate(points.items()):
        path = " ".join("{:.1f},{:.1f}".format(*place(index, statistics.mean(values))) for index, values in line)
        for index, values in line:
            for x, y in (place(index, value) for value in values):
                parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' fill='{colours[name]}'/>")
        parts.append(f"<polyline fill='none' stroke='{colours[name]}' stroke-width='2' points='{path}'/>")
        parts.append(f"<text x='{width - margin - 80}' y='{40 + 16 * row}' fill='{colours[name]}'>{name}</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
