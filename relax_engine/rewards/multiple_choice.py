"""`--rm-type multiple_choice`: the content of `<answer>` is the label."""

from __future__ import annotations

from typing import Any

from relax_engine.rewards.extract import empty_label, last_answer
from relax_engine.types import Sample

check_label = empty_label


def multiple_choice_reward(args: Any, sample: Sample) -> float:
    """1.0 if the last `<answer>...</answer>` equals the label, or the label's own `<answer>`; else 0.0.

    An empty answer is never right.
    """
    answer = last_answer(sample.response)
    label = last_answer(sample.label or "") or (sample.label or "").strip()
    return float(bool(label) and answer == label)
