"""Box or last number, with normalisation in a module of its own; returns a tuple."""

import math

from .. import normalise as rules
from ..math_style import last_box


def compute_score(model_output: str, ground_truth: str) -> tuple[bool, bool, str]:
    """Right, well formed, and the answer that was found."""
    answer = last_box(model_output)
    text = answer if answer is not None else model_output.strip().split(" ")[-1]
    left, right = rules.number(text), rules.number(str(ground_truth))
    if left is not None and right is not None:
        return math.isclose(left, right, rel_tol=1e-6), answer is not None, text
    return rules.normalise(text) == rules.normalise(str(ground_truth)), answer is not None, text
