"""The last `Answer:` line near the end; wrong answers cost a point."""

import re
from typing import Any

_TAIL = 300


def compute_score(solution_str: str, ground_truth: str) -> dict[str, Any]:
    """A dictionary with `score` of 1 or -1, `acc` and `pred`."""
    found = re.findall(r"(?i)answer\s*:\s*([^\n]+)", solution_str[-_TAIL:])
    prediction = found[-1].strip().strip("$.") if found else "[INVALID]"
    right = prediction == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": prediction}
