"""What an example is: the models that it starts from, and the settings of its RL.

What lives here: settings that examples have in common, and the form of their own (`examples/NAME/recipe.py`). What does
not: running them (`recipes.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples import tiny_media
from examples.tiny_math import make_model as tiny_text

ROOT = Path(__file__).resolve().parents[1]
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
SFT: Mapping[str, Any] = {
    "loss_type": "sft",
    "rollout_batch_size": 128,
    "global_batch_size": 128,
    "lr": 2e-3,
    "lr_decay_style": "constant",
    "lr_warmup_iters": 20,
    "rollout_max_prompt_len": 96,
    "rollout_max_response_len": 32,
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
MODES: Mapping[str, Mapping[str, Any]] = {"sync": {}, "async": {"fully_async": True, "max_staleness": 2}}
ROLES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "sync": {"actor": (1, 1), "rollout": (1, 1)},
    "async": {"actor": (1, 1), "rollout": (1, 1), "actor_fwd": (1, 1), "advantages": (1, 0)},
}


@dataclass(frozen=True)
class Supervised:
    """A model made by supervised steps, from random weights.

    Attributes:
        steps: Steps of 128 rows.
        split: Which of the example's files it learns from.
        context: Longest sequence of the model, in tokens.
        flags: What its training needs beside `COMMON` and `SFT`.
    """

    steps: int
    split: str = "sft"
    context: int = 256
    flags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """One example, in a folder with `make_data(directory, seed=...)` in `make_data.py`.

    Attributes:
        start: The model that RL begins with.
        steps: RL steps.
        flags: What its RL needs beside `COMMON` and `RL`.
        pieces: Texts that are tokens of its models.
        others: Further models of the run, by the flag that takes their directory.
        family: Whose architecture its models have, where they read images, video or audio; else they are `tiny_math`'s.
        roles: Roles beside those of every run, on a device of their own each.
        scoring: Flags that held-out prompts are scored with, where they are not those of the run.
    """

    start: Supervised
    steps: int
    flags: Mapping[str, Any]
    pieces: Sequence[str] = ()
    others: Mapping[str, Supervised] = field(default_factory=dict)
    family: tiny_media.Family | None = None
    roles: Sequence[str] = ()
    scoring: Mapping[str, Any] = field(default_factory=dict)

    def make_model(self, directory: Path, made: Supervised, seed: int) -> Path:
        """Write `made`'s model with random weights; the same seed gives the same bytes."""
        if self.family is None:
            return tiny_text.make_model(directory, seed=seed, pieces=self.pieces, context=made.context)
        return tiny_media.make_model(
            directory, self.family, seed=seed, pieces=self.pieces, context=made.context, spread=0.06
        )

    def rl(self, mode: str, steps: int, seed: int) -> dict[str, Any]:
        """All flags of its RL but the files."""
        return {
            **COMMON,
            **RL,
            **self.flags,
            **MODES[mode],
            "resource": {**ROLES[mode], **dict.fromkeys(self.roles, (1, 1))},
            "num_rollout": steps,
            "lr_warmup_iters": min(10, steps // 4),
            "seed": seed,
            "rollout_seed": seed,
        }


def names() -> list[str]:
    """The examples that have a recipe."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/recipe.py"))


def recipe(name: str) -> Recipe:
    """The example of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in names():
        raise ValueError(f"there is no example {name!r}; there are: {', '.join(names())}")
    found: Recipe = importlib.import_module(f"examples.{name}.recipe").RECIPE
    return found
