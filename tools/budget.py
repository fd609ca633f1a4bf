"""Time, memory and cost of recipes: docs/budget.md, from the simulator and the memory calculator.

    python tools/budget.py                                  # 500 steps, a price of 2.5 a device hour
    python tools/budget.py --steps 200 --price 3.5 --recipes mine.yaml --output mine.md

Which recipes: tools/budget.yaml. Second table: memory of every preset with the flags and devices it is made for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from relax_engine.config import RunConfig
from relax_engine.config.model_presets import preset_names, read_preset
from relax_engine.simulation import simulate
from relax_engine.simulation.device_memory import device_memory

ROOT = Path(__file__).resolve().parents[1]
TOKENS = 16384
STEPS_SIMULATED = 40
_GB = 1e9
_TEXT = """# Budgets

Written by `python tools/budget.py` from `tools/budget.yaml`; with recipes, steps and a price of your own by its flags.

**Time and cost** of {steps} steps, each of 512 prompts with 16 responses. A step is simulated from the phases that its
source measured, and is within 10 % of the published ones ([how far that can be
trusted](simulate.md#how-far-it-can-be-trusted)); for a recipe of yours, take the phases of a short run (`relax simulate
--from-run`). Cost: device hours times {price:g}, an assumed price. Memory: of one device of the trainer, and the
weights of one engine; what is left on the engine's device is its key/value cache.

{recipes}

**Memory** of one of the trainer's devices in GB for each preset, {tokens:,} tokens in a micro-batch. Parameters,
gradients and optimizer are exact; activations are an estimate, and workspace of kernels comes on top. `relax doctor`
prints the same for any configuration.

{presets}
"""


def budget(recipe: Mapping[str, Any], steps: int, price: float) -> tuple[object, ...]:
    """One row: name, devices, seconds a step, hours, device hours, cost, GB of trainer and of an engine's weights."""
    step = simulate(recipe["plan"], steps=STEPS_SIMULATED).step_time
    hours = step * steps / 3600
    memory = device_memory(RunConfig.from_flat(**recipe["run"])) or {}
    trainer = sum(size for part, size in memory["actor"].items() if not part.startswith("host"))
    sizes = (_gb(trainer), _gb(memory["rollout"]["parameters"]))
    cost = recipe["devices"] * hours * price
    return (
        recipe["name"],
        recipe["devices"],
        f"{step:.0f}",
        f"{hours:.1f}",
        f"{cost / price:,.0f}",
        f"{cost:,.0f}",
        *sizes,
    )


def memory_of(name: str) -> tuple[object, ...]:
    """One row: preset, devices, and GB of one device in all and by part."""
    preset = read_preset(name)
    resource = {"actor": [1, preset.devices], "rollout": [1, preset.devices]}
    config = RunConfig.from_flat(model_preset=name, colocate=True, resource=resource, max_tokens_per_gpu=TOKENS)
    parts = (device_memory(config) or {})["actor"]
    shown = [parts[part] for part in ("parameters", "gradients", "optimizer", "activations")]
    return (name, preset.devices, _gb(sum(shown)), *map(_gb, shown))


def _gb(size: float) -> str:
    return f"{size / _GB:.1f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (header, ["---"] * len(header), *rows))


def main(argv: Sequence[str] | None = None) -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description="Time, memory and cost of recipes.")
    parser.add_argument("--recipes", type=Path, default=ROOT / "tools/budget.yaml")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--price", type=float, default=2.5, help="of a device hour, in any currency (%(default)g)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/budget.md")
    options = parser.parse_args(argv)
    recipes = yaml.safe_load(options.recipes.read_text(encoding="utf-8"))
    rows = [budget(recipe, options.steps, options.price) for recipe in recipes]
    header = (
        "recipe",
        "devices",
        "seconds a step",
        "hours",
        "device hours",
        "cost",
        "trainer, GB",
        "engine's weights, GB",
    )
    presets = _table(
        ("preset", "devices", "GB", "parameters", "gradients", "optimizer", "activations"),
        map(memory_of, preset_names()),
    )
    text = _TEXT.format(
        steps=options.steps, price=options.price, tokens=TOKENS, recipes=_table(header, rows), presets=presets
    )
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
