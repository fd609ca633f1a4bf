"""The settings of the example."""

from __future__ import annotations

from examples.search_r1.make_data import PIECES
from examples.settings import ROOT, Recipe, Supervised

RECIPE = Recipe(
    start=Supervised(steps=130),
    steps=50,
    pieces=PIECES,
    flags={
        "custom_generate_function_path": "relax_engine.rollout.multi_turn.generate",
        "custom_config_path": str(ROOT / "examples/search_r1/custom.yaml"),
        "rm_type": "search_em",
        "rollout_max_prompt_len": 20,
        "rollout_max_response_len": 16,
        "rollout_max_context_len": 104,
    },
)
