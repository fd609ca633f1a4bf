"""The settings of the example."""

from __future__ import annotations

from examples.genrm.make_data import PIECES
from examples.settings import ROOT, Recipe, Supervised

RECIPE = Recipe(
    start=Supervised(steps=60),
    others={"genrm_model_path": Supervised(steps=160, split="judge")},
    roles=("genrm",),
    steps=40,
    pieces=PIECES,
    flags={
        "rm_type": "genrm",
        "custom_config_path": str(ROOT / "examples/genrm/rewards.yaml"),
        "genrm_engine_config": {"max_context_len": 256},
        "genrm_sampling_config": {"temperature": 0.0, "max_response_len": 24},
        "rollout_max_prompt_len": 16,
        "rollout_max_response_len": 12,
    },
    # Held-out answers are compared with the label, without the judge: what it likes must be right.
    scoring={"rm_type": "search_em", "custom_config_path": None},
)
