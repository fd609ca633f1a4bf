"""Training on sessions of agents: programs that talk to the policy, in turns with training and beside it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics

HALF = tuple(range(3, 131))
"""Tokens of which each ends an answer: about every second one that a random model samples."""
AGENT = Path(__file__).with_name("talking_agent.py")
CREDIT = f"{Path(__file__).with_name('agent_credit.py')}:advantages"
ASYNC = {
    "fully_async": True,
    "resource": {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]},
    "max_staleness": 1,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "contexts"),
    [({"agentic_prelaunch": True}, 1), (ASYNC, 1), ({"agentic_custom_advantage_path": CREDIT}, 2), (ASYNC, 2)],
    ids=["colocate, early", "fully async", "two contexts, credit", "two contexts, async"],
)
def test_sessions_are_trained(mode: Any, contexts: int, ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    config = tiny.config(
        tmp_path / "run",
        num_rollout=3,
        use_agentic_rollout=True,
        agent_command=f"{sys.executable} -S -E {AGENT}",
        agent_env=[f"CONTEXTS={contexts}"],
        agent_timeout=30.0,
        rollout_stop_token_ids=list(HALF),
        rollout_max_response_len=16,
        rollout_max_context_len=160,
        **mode,
    )
    result = train(config)
    lines = read_metrics(Path(result.run_dir) / "metrics.jsonl")
    assert len(lines) == 3
    assert all(math.isfinite(line["train/loss"]) and line["train/grad_norm"] > 0 for line in lines)
    assert result.logprob_max_abs_diff < 1e-3
    assert sum(line["rollout/agents/completed"] for line in lines) >= 48
    assert sum(line.get("rollout/agents/failed", 0) for line in lines) == 0
    assert sum(result.staleness_histogram.values()) == 48 * contexts
