"""The settings of the example."""

from __future__ import annotations

from examples.settings import ROOT, Recipe, Supervised
from examples.swe_sandbox.make_data import PIECES

RECIPE = Recipe(
    start=Supervised(steps=140),
    steps=32,
    pieces=PIECES,
    flags={
        "use_agentic_rollout": True,
        "agent_command": "python -S -m examples.swe_sandbox.agent",
        "agent_cwd": str(ROOT),
        "agent_timeout": 60.0,
        "agentic_concurrency": 2,
        "rollout_batch_size": 8,
        "n_samples_per_prompt": 4,
        "n_samples_per_eval_prompt": 1,
        "rollout_max_prompt_len": 56,
        "rollout_max_response_len": 12,
        "rollout_max_context_len": 96,
    },
)
