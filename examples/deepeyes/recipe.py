"""The settings of the example."""

from __future__ import annotations

from examples.deepeyes.make_data import PIECES
from examples.settings import ROOT, Recipe, Supervised

_MEDIA = {"multimodal_keys": {"image": "images"}, "image_min_token_num": 4, "image_max_token_num": 4}

RECIPE = Recipe(
    family="qwen2_5_vl",
    start=Supervised(steps=70, flags=_MEDIA),
    steps=60,
    pieces=PIECES,
    flags={
        **_MEDIA,
        "custom_generate_function_path": "relax_engine.rollout.multi_turn.generate",
        "custom_config_path": str(ROOT / "examples/deepeyes/custom.yaml"),
        "custom_rm_path": "examples.deepeyes.reward_deepeyes.reward_func",
        "reward_key": "score",
        "lr": 2e-4,
        "min_lr": 2e-5,
        "rollout_max_prompt_len": 32,
        "rollout_max_response_len": 8,
        "rollout_max_context_len": 96,
    },
)
