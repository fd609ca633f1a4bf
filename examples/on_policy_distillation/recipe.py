"""The settings of the example."""

from __future__ import annotations

from examples.settings import Recipe, Supervised

RECIPE = Recipe(
    start=Supervised(steps=48),
    others={"teacher_hf_checkpoint": Supervised(steps=200)},
    roles=("teacher",),
    steps=50,
    pieces=("reverse ",),
    flags={
        "rm_type": "exact_match",
        "use_opd": True,
        "opd_only_reward": True,
        "opd_kl_coef": 1.0,
        "n_samples_per_prompt": 4,
        "rollout_max_prompt_len": 16,
        "rollout_max_response_len": 10,
    },
    scoring={"use_opd": False},
)
