"""Numbers of an evaluation pass."""

import numpy as np

from relax_engine.rollout.evaluation import EvaluationResult


def result(rewards: list[list[float]]) -> EvaluationResult:
    return EvaluationResult(np.array(rewards), np.array([2, 4]), 0.25, [])


def test_pass_at_k_is_the_share_of_prompts_with_one_full_reward() -> None:
    scored = result([[1.0, 0.0], [0.0, 0.0], [0.5, 0.9], [1.0, 1.0]])
    assert scored.metrics("eval/a") == {
        "eval/a": 4.4 / 8,
        "eval/a-truncated_ratio": 0.25,
        "eval/a/response_len/mean": 3.0,
        "eval/a/response_len/median": 3.0,
        "eval/a/response_len/max": 4.0,
        "eval/a/response_len/min": 2.0,
        "eval/a-pass@2": 0.5,
    }


def test_one_sample_per_prompt_has_no_pass_at_k() -> None:
    assert "eval/a-pass@1" not in result([[1.0], [0.0]]).metrics("eval/a")
