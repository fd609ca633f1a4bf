"""`--rm-type exact_match`: does the response give the label, word for word?

For procedurally generated tasks whose one correct answer is a string.
"""

from __future__ import annotations

import re
from typing import Any

from relax_engine.types import Sample

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def exact_match_reward(args: Any, sample: Sample) -> float:
    """1.0 if the last `<answer>...</answer>`, or without one the whole response, equals the label; else 0.0.

    White space around either is ignored, case is not.

    Raises:
        ValueError: the label is empty.
    """
    label = sample.label or ""
    problem = check_label(label)
    if problem:
        raise ValueError(problem)
    answers = _ANSWER.findall(sample.response)
    return float((answers[-1] if answers else sample.response).strip() == label.strip())


def check_label(label: str) -> str | None:
    """Why `label` cannot be compared with, or None if it can."""
    return None if label.strip() else "the label is empty"
