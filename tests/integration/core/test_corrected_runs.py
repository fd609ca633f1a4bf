"""Fully-async runs under off-policy corrections: which log-probs are there, and what the weights do."""

from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics


def records(config: Any) -> list[dict[str, Any]]:
    return read_metrics(Path(train(config).run_dir) / "metrics.jsonl")


@pytest.mark.long
def test_decoupled_ppo_without_a_role_for_old_log_probs(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    """Two optimizer steps per rollout: the actor computes the proximal log-probs itself, at the start of each step."""
    lines = records(
        tiny.config(
            tmp_path,
            fully_async=True,
            max_staleness=1,
            resource={"actor": [1, 1], "rollout": [1, 1], "advantages": [1, 0]},
            num_steps_per_rollout=2,
            use_decoupled_ppo=True,
            tis_level="sequence",
            tis_mode="mask",
            use_opsm=True,
            lr=1e-2,
        )
    )
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert 0 < line["train/tis_ess"] <= 1 + 1e-6
        assert line["mismatch/ratio/min"] <= line["mismatch/ratio/p50"] <= line["mismatch/ratio/max"]
    # The first rollout comes from the weights at its start: proximal and behaviour policy are one.
    assert lines[0]["mismatch/ratio/max"] == pytest.approx(1.0, abs=1e-3)
    assert lines[0]["train/tis"] == pytest.approx(1.0, abs=1e-3)
    # A later one is stale by a version of two large steps.
    stale = [line for line in lines if line["rollout/staleness/max"] == 1]
    assert stale
    assert max(line["mismatch/k3_kl"] for line in stale) > 10 * lines[0]["mismatch/k3_kl"]
