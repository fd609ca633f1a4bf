"""Runs whose advantages need more than rewards: KL inside them, bounds from the whole batch, and a cold temperature."""

from pathlib import Path
from typing import Any

import pytest

from relax_engine.core.train import train
from relax_engine.observe.metrics import read_metrics


def records(config: Any) -> list[dict[str, Any]]:
    return read_metrics(Path(train(config).run_dir) / "metrics.jsonl")


def test_equal_weights_have_ratios_of_one_at_a_low_temperature(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    """Engine against trainer on every token, and a KL penalty that starts at 0 and moves with the policy."""
    lines = records(
        tiny.config(
            tmp_path,
            advantage_estimator="reinforce_plus_plus",
            normalize_advantages=True,
            kl_coef=0.1,
            gamma=0.99,
            rollout_temperature=0.6,
            num_steps_per_rollout=2,
        )
    )
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines:
        # |log ratio| at most 1e-5: every ratio is 1 +- 1e-5
        assert line["train/rollout_logprob_gap"] < 1e-5
    assert lines[0]["train/kl_reward"] == pytest.approx(0.0, abs=1e-6)
    assert abs(lines[-1]["train/kl_reward"]) > 1e-4


@pytest.mark.long
def test_bounds_of_the_whole_batch_reach_the_loss_in_fully_async(ray_cluster: None, tiny: Any, tmp_path: Path) -> None:
    """M2PO's actor compares its weights before a step with the policy that sampled, and bounds the loss by it."""
    budget = 1e-4
    lines = records(
        tiny.config(
            tmp_path,
            advantage_estimator="m2po",
            m2po_kl2_budget=budget,
            m2po_miniclip_low=0.0,
            m2po_miniclip_high=0.0,
            fully_async=True,
            max_staleness=1,
            resource={"actor": [1, 1], "rollout": [1, 1], "advantages": [1, 0]},
            num_rollout=4,
            lr=5e-3,
        )
    )
    # The first batch comes from the weights that are trained: within the budget, so nothing is clipped.
    assert lines[0]["train/ppo_kl_m2_before"] < 1e-8
    assert lines[0]["train/m2po_eps_high"] == pytest.approx(1e5, rel=1e-3)
    bounded = [line for line in lines if line["train/ppo_kl_m2_before"] > budget]
    assert bounded
    for line in bounded:
        assert line["train/ppo_kl_m2_after"] == pytest.approx(budget, rel=1e-3)
        assert 0 < line["train/m2po_eps_low"] < line["train/m2po_eps_high"] < 1
        assert line["rollout/staleness/max"] == 1
