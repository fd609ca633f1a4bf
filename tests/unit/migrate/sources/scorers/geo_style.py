"""Nine tenths for the answer, one tenth for thoughts in front of a box."""

import re

from .math_style import last_box


def format_reward(text: str) -> float:
    """1.0 for `<think>...</think> ... \\boxed{...}`."""
    return float(re.fullmatch(r"<think>.*</think>.*\\boxed\{.*\}.*", text, re.DOTALL) is not None)


def compute_score(predict_str: str, ground_truth: str, use_boxed: bool = True, format_score: float = 0.1) -> float:
    """The weighted sum of both."""
    answer = last_box(predict_str) if use_boxed else predict_str
    accuracy = float(answer is not None and answer.strip() == ground_truth.strip())
    return (1 - format_score) * accuracy + format_score * format_reward(predict_str)
