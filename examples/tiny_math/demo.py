"""`make demo`: the whole pipeline on a tiny model, from generated prompts to a published, evaluated model.

Makes prompts and a model with random weights, runs `workflows/post_training.py` with `pyflyte run`, and prints what
came of it; the same facts go to `build/demo_report.json`. Started again with the same arguments, nothing is computed
anew: every task's result is in Flyte's cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.executions import VARIABLE, Execution, read_executions

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
NAME = "tiny-math"
TASKS = 17  # what `post_training` runs when nothing is cached: 3 x (intake, convert, validate) and 8 more
WARM_START = {"steps": 72, "batch_size": 128, "lr": 2e-3, "warmup_steps": 20}
ASYNC_STALENESS = 2  # weight versions
ASYNC_RESOURCE = {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]}
DEADLINE_S = 1800


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit code of the pipeline."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.max_staleness is not None and not (options.fully_async or options.hybrid):
        parser.error("--max-staleness needs --fully-async or --hybrid: otherwise every sample is trained at once")
    build = Path(options.build).resolve()
    started = time.monotonic()
    seconds: dict[str, float] = {}
    inputs = _prepare(build / "demo", options.seed, seconds)
    log = build / "demo" / "executions.jsonl"
    log.unlink(missing_ok=True)
    before_pipeline = time.monotonic()
    code, output = _run_pipeline(_command(inputs, options), log, build)
    seconds["pipeline"] = round(time.monotonic() - before_pipeline, 1)
    executions = read_executions(log)
    if code:
        print(f"{output}\nThe pipeline failed (exit code {code}); the error is above.", file=sys.stderr)
        return code
    seconds["total"] = round(time.monotonic() - started, 1)
    report = _collect(output, executions, seconds)
    path = build / "demo_report.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _print(report, path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description=__doc__.partition("\n\n")[0])
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--fully-async", action="store_true", help="rollout, training and log-probs all at once")
    mode.add_argument("--hybrid", action="store_true", help="rollout beside an actor that does everything else")
    parser.add_argument("--max-staleness", type=int, help="weight versions a sample may lag (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="of data, model, sampling and order (default 0)")
    parser.add_argument("--num-rollout", type=int, help="RL steps (default: the configuration's)")
    parser.add_argument("--build", default=str(ROOT / "build"), help="where inputs and the report go (default: build)")
    return parser


def _prepare(directory: Path, seed: int, seconds: dict[str, float]) -> dict[str, Path]:
    """Prompts and base model of this seed; made once."""
    from examples.tiny_math.make_data import SPLITS, make_data
    from examples.tiny_math.make_model import make_model

    data, model = directory / f"data-{seed}", directory / f"model-{seed}"
    begun = time.monotonic()
    if not all((data / f"{split}.parquet").exists() for split in SPLITS):
        print(f"Making prompts from reasoning-gym in {data} ...", flush=True)
        make_data(data, seed=seed)
    if not (model / "generation_config.json").exists():
        print(f"Making a Qwen3 with random weights in {model} ...", flush=True)
        make_model(model, seed=seed)
    seconds["inputs"] = round(time.monotonic() - begun, 1)
    return {**{split: data / f"{split}.parquet" for split in SPLITS}, "model": model}


def _command(inputs: dict[str, Path], options: argparse.Namespace) -> list[str]:
    overrides: dict[str, Any] = {}
    if options.num_rollout is not None:
        overrides["num_rollout"] = options.num_rollout
        overrides["lr_warmup_iters"] = min(10, options.num_rollout // 4)
    if options.fully_async or options.hybrid:
        staleness = ASYNC_STALENESS if options.max_staleness is None else options.max_staleness
        overrides |= {"max_staleness": staleness, "hybrid" if options.hybrid else "fully_async": True}
    if options.fully_async:
        overrides["resource"] = ASYNC_RESOURCE
    pyflyte = Path(sys.executable).parent / "pyflyte"
    return [
        *(str(pyflyte), "run", "workflows/post_training.py", "post_training"),
        *("--train_prompts", str(inputs["train"]), "--heldout_prompts", str(inputs["heldout"])),
        *("--demonstrations", json.dumps([str(inputs["sft"])]), "--base_model", str(inputs["model"])),
        *("--config", str(HERE / "tiny_math.yaml"), "--name", NAME, "--seed", str(options.seed)),
        *("--warm_start_options", json.dumps(WARM_START), "--overrides", json.dumps(overrides)),
    ]


def _run_pipeline(command: list[str], log: Path, build: Path) -> tuple[int, str]:
    """Run it with its progress on this terminal; returns exit code and standard output."""
    print(f"\n$ {shlex.join(['pyflyte', *command[1:]])}\n", flush=True)
    environment = {
        **os.environ,
        VARIABLE: str(log),
        "RELAX_ARTIFACTS": os.environ.get("RELAX_ARTIFACTS", str(ROOT / "artifacts")),
        "RELAX_WORK": os.environ.get("RELAX_WORK", str(build / "work")),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False
    )
    return done.returncode, done.stdout


def _collect(output: str, executions: list[Execution], seconds: dict[str, float]) -> dict[str, Any]:
    """The facts of the demo, from the report that the pipeline published."""
    from relax_engine.lineage import ArtifactStore

    store = ArtifactStore.open(os.environ.get("RELAX_ARTIFACTS", str(ROOT / "artifacts")))
    report_artifact = store.resolve(_reference(output, f"{NAME}-report"))
    model = store.resolve(_reference(output, f"{NAME}-model"))
    facts: dict[str, Any] = json.loads((store.fetch(report_artifact) / "report.json").read_text())
    by_task: dict[str, float] = {}
    for execution in executions:
        by_task[execution.task] = round(by_task.get(execution.task, 0.0) + execution.seconds, 1)
    facts["artifacts"][report_artifact.ref] = {"kind": report_artifact.kind, "digest": report_artifact.digest}
    heldout = next(ref for ref in facts["artifacts"] if ref.startswith(f"{NAME}-heldout@"))
    facts |= {
        "model": model.ref,
        "model_path": str(store.fetch(model)),
        "wall_seconds": {**seconds, **by_task},
        "tasks": TASKS,
        "cache_hits": TASKS - len(executions),
        "executed": [execution.task for execution in executions],
        "evaluate_command": (
            f"relax eval --config {HERE.relative_to(ROOT) / 'tiny_math.yaml'} --hf-checkpoint {store.fetch(model)} "
            f"--eval-prompt-data heldout {store.fetch(heldout)}"
        ),
    }
    return facts


def _reference(output: str, name: str) -> str:
    """`name@vN` as the workflow printed it among its outputs."""

    found = re.findall(rf"\b{re.escape(name)}@v\d+", output)
    if not found:
        raise RuntimeError(f"the pipeline's output names no {name}: {output[-500:]!r}")
    return str(found[-1])


def _print(report: dict[str, Any], path: Path) -> None:
    print("\nArtifacts")
    for ref, entry in sorted(report["artifacts"].items()):
        print(f"  {entry['kind']:<11} {ref:<32} {entry['digest'][:12]}")
    print(f"\nMean reward over {len(report['reward_curve'])} steps ({report['mode']})")
    print(chart(report["reward_curve"]))
    print("\nHeld-out accuracy        before   after")
    print(f"  sampled (temperature 1) {report['accuracy_before']:.3f}   {report['accuracy_after']:.3f}")
    print(f"  greedy                  {report['greedy_accuracy_before']:.3f}   {report['greedy_accuracy_after']:.3f}")
    print(f"\nEngine and trainer log-probs differ by at most {report['logprob_max_abs_diff']:.2e}")
    print(f"Samples trained, by lag in weight versions: {report['staleness_histogram']}")
    busy = sum(report["phase_seconds"].values())
    print(f"Phases of all roles add up to {busy:.1f} s within {report['training_seconds']:.1f} s of training")
    print(f"{report['cache_hits']} of {report['tasks']} tasks from cache; {report['wall_seconds']['total']} s in all")
    print(f"Promotion: {report['reason']}")
    print(f"Report: {path}")
    print(f"\nEvaluate the model again:\n  {report['evaluate_command']}")
    print(f"Where it came from:\n  relax lineage show {report['model']}")


def chart(values: Sequence[float], width: int = 60, height: int = 8) -> str:
    """Values over their index as a small text chart; each column is a mean of neighbours."""
    if not values:
        return "  (no values)"
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (height - 1) / (high - low) if high > low else 0.0
    rows = [round((mean - low) * scale) for mean in means]
    lines = []
    for level in range(height - 1, -1, -1):
        label = f"{high:6.3f}" if level == height - 1 else f"{low:6.3f}" if level == 0 else " " * 6
        lines.append(f"{label} |" + "".join("*" if row == level else " " for row in rows).rstrip())
    return "\n".join([*lines, " " * 7 + "+" + "-" * columns])


if __name__ == "__main__":
    raise SystemExit(main())
