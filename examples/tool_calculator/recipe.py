"""The settings of the example."""

from __future__ import annotations

from examples.settings import ROOT, Recipe, Supervised
from examples.tool_calculator.make_data import PIECES

RECIPE = Recipe(
    start=Supervised(steps=52),
    steps=60,
    pieces=PIECES,
    flags={
        "custom_generate_function_path": "relax_engine.rollout.multi_turn.generate",
        "custom_config_path": str(ROOT / "examples/tool_calculator/custom.yaml"),
        "custom_rm_path": "examples.tool_calculator.reward_tool_calculator.reward_func",
        "reward_key": "score",
        "rollout_max_prompt_len": 32,
        "rollout_max_response_len": 16,
        "rollout_max_context_len": 72,
    },
)
