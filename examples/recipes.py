"""Run an example: data, models, a supervised warm start, RL, and the score before and after.

    python -m examples.recipes tool_calculator --mode async

What lives here: the order of things. What does not: settings (`settings.py` and the example's `recipe.py`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.settings import COMMON, MODES, ROOT, SFT, Recipe, Supervised, names, recipe


def run(name: str, mode: str, out: Path, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
    """Prepare, train in `mode` (`sync` or `async`), and score the held-out prompts before and after.

    Returns:
        `before` and `after` (`sampled`, `greedy`), `reward_curve`, `seconds` by stage, and the settings.
    """
    from relax_engine import RunConfig, export_checkpoint, train

    chosen = recipe(name)
    started = time.monotonic()
    home = out / f"seed-{seed}"
    paths: dict[str, Path] = importlib.import_module(f"examples.{name}.make_data").make_data(home, seed=seed)
    start = supervised(chosen, chosen.start, home / "start", paths, seed)
    others = {flag: str(supervised(chosen, each, home / flag, paths, seed)) for flag, each in chosen.others.items()}
    prepared = time.monotonic() - started
    work = out / mode
    shutil.rmtree(work, ignore_errors=True)
    steps = steps or chosen.steps
    settings = chosen.rl(mode, steps, seed)
    before = score(chosen, settings, start, paths["heldout"])
    result = train(
        RunConfig.from_flat(
            **settings,
            **others,
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
        "after": score(chosen, settings, work / "model", paths["heldout"]),
        "reward_curve": [round(value, 4) for value in result.reward_curve],
        "logprob_max_abs_diff": result.logprob_max_abs_diff,
        "seconds": {"prepare": round(prepared, 1), "training": round(result.wall_seconds, 1)},
    }


def supervised(chosen: Recipe, made: Supervised, model: Path, paths: Mapping[str, Path], seed: int) -> Path:
    """The directory `model`, after supervised steps from random weights; made once."""
    from relax_engine import RunConfig, export_checkpoint, train

    if model.exists():
        return model
    base, run_dir = model.with_suffix(".base"), model.with_suffix(".run")
    chosen.make_model(base, made, seed)
    result = train(
        RunConfig.from_flat(
            **{**COMMON, **SFT, **made.flags},
            num_rollout=made.steps,
            hf_checkpoint=str(base),
            prompt_data=[str(paths[made.split])],
            save=str(run_dir / "checkpoints"),
            save_interval=made.steps,
            run_dir=str(run_dir),
            seed=seed,
            rollout_seed=seed,
        )
    )
    partial = model.with_suffix(".partial")
    export_checkpoint(str(result.checkpoint_dir), partial, origin_hf_dir=base, force=True)
    partial.rename(model)
    return model


def score(chosen: Recipe, settings: Mapping[str, Any], model: Path, prompts: Path) -> dict[str, float]:
    """Mean rewards of `model` on the held-out prompts, at temperature 1 and without chance."""
    from relax_engine import RunConfig, evaluate

    changes = {"hf_checkpoint": str(model), "eval_prompt_data": {"heldout": [str(prompts)]}, **chosen.scoring}
    (result,) = evaluate(RunConfig.from_flat(**{**settings, **changes}))
    return {"sampled": round(result.accuracy, 4), "greedy": round(result.greedy_accuracy, 4)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one example and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m examples.recipes", description=__doc__.partition("\n\n")[0])
    parser.add_argument("name", choices=names())
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
