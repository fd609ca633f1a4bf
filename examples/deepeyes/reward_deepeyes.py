"""DeepEyes' reward: for the right answer, for its form, and for having looked closely before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_engine.types import Sample

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


async def reward_func(args: Any, sample: Sample, **kwargs: Any) -> dict[str, float]:
    """`score = 0.8 accuracy + 0.2 format + 1.2 looked`, from -0.2 to 2.0.

    `format` is 0 if the exchange ended by itself with its one answer, else -1, and an answer counts in that form only.
    `looked` is 1 for a right answer after a call that was carried out. The rest is for the metrics.
    """
    notes = sample.metadata.get("environment", {})
    answers = _ANSWER.findall(sample.response)
    formed = len(answers) == 1 and sample.response.rstrip().endswith("</answer>") and notes.get("stop") == "done"
    right = bool(formed and answers[0].strip() == sample.label)
    calls = float(notes.get("tool_calls", 0))
    return {
        "score": 0.8 * right - 0.2 * (not formed) + 1.2 * (right and calls > 0),
        "accuracy": float(right),
        "tool_calls": calls,
        "turns": float(notes.get("turns", 0)),
    }
