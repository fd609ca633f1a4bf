"""A run whose advantages contain KL, at a cold temperature: ratios between engine and trainer, and the penalty."""

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
