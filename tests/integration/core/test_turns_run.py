"""Training on exchanges with an environment: observations are in the context, and nobody learns to write them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import turns_environment

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

HALF = tuple(range(3, 131))
"""Tokens of which each ends a turn: about every second one that a random model samples."""


@pytest.mark.long
@pytest.mark.parametrize("mode", [{}, {"hybrid": True, "max_staleness": 1}], ids=["colocate", "hybrid"])
def test_exchanges_are_trained(mode: Any, ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "custom.yaml").write_text(
        f"max_turns: 3\nrollout_interaction_env_path: {turns_environment.__file__}\n", encoding="utf-8"
    )
    config = tiny.config(
        tmp_path / "run",
        num_rollout=3,
        custom_generate_function_path="relax_engine.rollout.multi_turn.generate",
        custom_config_path=str(tmp_path / "custom.yaml"),
        custom_rm_path=f"{turns_environment.__file__}:score",
        rollout_stop_token_ids=list(HALF),
        rollout_max_response_len=40,
        rollout_max_context_len=120,
        **mode,
    )
    result = train(config)
    lines = read_metrics(Path(result.run_dir) / "metrics.jsonl")
    assert len(lines) == 3
    assert all(math.isfinite(line["train/loss"]) and line["train/grad_norm"] > 0 for line in lines)
    assert result.logprob_max_abs_diff < 1e-3
    # Two turns of about two tokens, and an observation of a few tokens between them.
    assert all(7 < line["rollout/response_len/mean"] < 40 for line in lines)
