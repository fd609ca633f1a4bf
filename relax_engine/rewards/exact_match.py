"""`--rm-type exact_match`: does the response give the label, word for word?

For procedurally generated tasks whose one correct answer is a string.
"""

from __future__ import annotations

from typing import Any

from relax_engine.rewards.extract import empty_label, last_answer
from relax_engine.types import Sample

check_label = empty_label


def exact_match_reward(args: Any, sample: Sample) -> float:
    """1.0 if the last `<answer>...</answer>`, or without one the whole response, equals the label; else 0.0.

    White space around either is ignored, case is not. Nothing equals an empty label.
    """
    label, answer = (sample.label or "").strip(), last_answer(sample.response)
    return float(bool(label) and (sample.response.strip() if answer is None else answer) == label)
