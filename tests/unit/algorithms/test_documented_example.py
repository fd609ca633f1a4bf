"""The algorithm written in docs/algorithms.md works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from relax_engine.algorithms import (
    AlgorithmSettings,
    LossInputs,
    get,
    make_policy_loss,
    normalize_rewards,
    training_columns,
    violations,
)

DOCS = Path(__file__).parents[3] / "docs" / "algorithms.md"


def test_own_algorithm_trains_without_touching_anything_else() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    exec(code, {"__name__": "documented"})
    spec, settings = get("sign"), AlgorithmSettings(advantage_estimator="sign", calculate_per_token_loss=True)
    rewards = normalize_rewards(spec, [9.0, 1.0, 2.0], [0, 0, 0], settings)
    assert rewards.tolist() == [1.0, -1.0, -1.0]
    offsets = torch.tensor([0, 2, 3, 4])
    columns = training_columns(spec, settings, {"rewards": rewards, "loss_masks": torch.ones(4)}, offsets)
    log_probs = torch.full((4,), -1.0, requires_grad=True)
    given = {**columns, "loss_masks": torch.ones(4), "rollout_log_probs": torch.full((4,), -1.0)}
    loss, _ = make_policy_loss(settings, true_on_policy=True)(log_probs, None, LossInputs(given, offsets))
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-0.25, -0.25, 0.25, 0.25])
    (violation,) = violations(spec, type("Config", (), {"n_samples_per_prompt": 1}))
    assert violation.fix == "--n-samples-per-prompt 2 or more"
