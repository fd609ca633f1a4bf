"""What the examples are made of: data, a model, a supervised warm start, RL, and the score before and after.

    python -m examples.recipes tool_calculator --mode async

What lives here: the settings of each example, and running one. What does not: their tasks (the example's folder).
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODES: Mapping[str, Mapping[str, Any]] = {
    "sync": {},
    "async": {
        "fully_async": True,
        "max_staleness": 2,
        "resource": {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]},
    },
}
COMMON: Mapping[str, Any] = {
    "input_key": "prompt",
    "label_key": "label",
    "metadata_key": "metadata",
    "apply_chat_template": True,
    "rollout_shuffle": True,
    "weight_decay": 0.0,
    "adam_beta2": 0.98,
    "clip_grad": 1.0,
    "max_tokens_per_gpu": 4096,
}
RL: Mapping[str, Any] = {
    "rollout_batch_size": 16,
    "n_samples_per_prompt": 8,
    "rollout_temperature": 1.0,
    "n_samples_per_eval_prompt": 2,
    "advantage_estimator": "grpo",
    "disable_grpo_std_normalization": True,
    "eps_clip": 0.2,
    "eps_clip_high": 0.28,
    "lr": 3e-4,
    "min_lr": 3e-5,
    "lr_decay_style": "linear",
}


@dataclass(frozen=True)
class Recipe:
    """One example.

    Attributes:
        package: Its folder, with `make_data(directory, seed=...)` in `make_data.py`.
        steps: RL steps.
        warm_steps: Steps of 128 rows of the supervised warm start.
        flags: What its RL needs beside `COMMON` and `RL`.
        pieces: Texts that are tokens of its model.
    """

    package: str
    steps: int
    warm_steps: int
    flags: Mapping[str, Any] = field(default_factory=dict)
    pieces: Sequence[str] = ()

    def module(self, name: str) -> Any:
        """A module of its folder."""
        return importlib.import_module(f"{self.package}.{name}")


def recipe(name: str) -> Recipe:
    """The example of that name."""
    if name == "tool_calculator":
        from examples.tool_calculator.make_data import PIECES

        flags = {
            "custom_generate_function_path": "relax_engine.rollout.multi_turn.generate",
            "custom_config_path": str(ROOT / "examples/tool_calculator/custom.yaml"),
            "custom_rm_path": "examples.tool_calculator.reward_tool_calculator.reward_func",
            "reward_key": "score",
            "rollout_max_prompt_len": 32,
            "rollout_max_response_len": 16,
            "rollout_max_context_len": 72,
        }
        return Recipe("examples.tool_calculator", 60, 52, flags, PIECES)
    raise ValueError(f"there is no example {name!r}; there is tool_calculator")


def run(name: str, mode: str, out: Path, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
    """Prepare, train in `mode` (`sync` or `async`), and score the held-out prompts before and after.

    Returns:
        `before` and `after` (`sampled`, `greedy`), `reward_curve`, `seconds` by stage, and the settings.
    """
    from relax_engine import RunConfig, export_checkpoint, train

    chosen = recipe(name)
    started = time.monotonic()
    paths, start = prepare(chosen, out, seed)
    prepared = time.monotonic() - started
    work = out / mode
    shutil.rmtree(work, ignore_errors=True)
    steps = steps or chosen.steps
    settings = {
        **COMMON,
        **RL,
        **chosen.flags,
        **MODES[mode],
        "num_rollout": steps,
        "lr_warmup_iters": min(10, steps // 4),
        "seed": seed,
        "rollout_seed": seed,
    }
    before = score(settings, start, paths["heldout"])
    result = train(
        RunConfig.from_flat(
            **settings,
            hf_checkpoint=str(start),
            prompt_data=[str(paths["train"])],
            save=str(work / "checkpoints"),
            save_interval=steps,
            run_dir=str(work / "run"),
        )
    )
    export_checkpoint(str(result.checkpoint_dir), work / "model", origin_hf_dir=start, force=True)
    return {
        "example": name,
        "mode": mode,
        "seed": seed,
        "steps": steps,
        "before": before,
        "after": score(settings, work / "model", paths["heldout"]),
        "reward_curve": [round(value, 4) for value in result.reward_curve],
        "logprob_max_abs_diff": result.logprob_max_abs_diff,
        "seconds": {"prepare": round(prepared, 1), "training": round(result.wall_seconds, 1)},
    }


def prepare(chosen: Recipe, out: Path, seed: int) -> tuple[dict[str, Path], Path]:
    """Data, and the model after the warm start; made once."""
    from examples.tiny_math.make_model import make_model
    from relax_engine import RunConfig, export_checkpoint, train

    home = out / f"seed-{seed}"
    start = home / "start"
    paths: dict[str, Path] = chosen.module("make_data").make_data(home, seed=seed)
    if start.exists():
        return paths, start
    make_model(home / "base", seed=seed, pieces=chosen.pieces)
    result = train(
        RunConfig.from_flat(
            **COMMON,
            loss_type="sft",
            num_rollout=chosen.warm_steps,
            rollout_batch_size=128,
            global_batch_size=128,
            lr=2e-3,
            lr_decay_style="constant",
            lr_warmup_iters=20,
            rollout_max_prompt_len=96,
            rollout_max_response_len=32,
            hf_checkpoint=str(home / "base"),
            prompt_data=[str(paths["sft"])],
            save=str(home / "warm"),
            save_interval=chosen.warm_steps,
            run_dir=str(home / "warm-run"),
            seed=seed,
            rollout_seed=seed,
        )
    )
    partial = home / "start.partial"
    export_checkpoint(str(result.checkpoint_dir), partial, origin_hf_dir=home / "base", force=True)
    partial.rename(start)
    return paths, start


def score(settings: Mapping[str, Any], model: Path, prompts: Path) -> dict[str, float]:
    """Mean rewards of `model` on the held-out prompts, at temperature 1 and without chance."""
    from relax_engine import RunConfig, evaluate

    changes = {"hf_checkpoint": str(model), "eval_prompt_data": {"heldout": [str(prompts)]}}
    (result,) = evaluate(RunConfig.from_flat(**{**settings, **changes}))
    return {"sampled": round(result.accuracy, 4), "greedy": round(result.greedy_accuracy, 4)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one example and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m examples.recipes", description=__doc__.partition("\n\n")[0])
    parser.add_argument("name", choices=["tool_calculator"])
    parser.add_argument("--mode", choices=list(MODES), default="sync")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="RL steps (default: the example's)")
    parser.add_argument("--out", type=Path, help="where everything goes (default: build/NAME)")
    parser.add_argument("--json", type=Path, help="add the outcome to this file")
    options = parser.parse_args(argv)
    out = options.out or ROOT / "build" / options.name
    outcome = run(options.name, options.mode, out, seed=options.seed, steps=options.steps)
    print(json.dumps(outcome, indent=1))
    if options.json is not None:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        known[f"{options.name}, {options.mode}, seed {options.seed}"] = outcome
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(known, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
