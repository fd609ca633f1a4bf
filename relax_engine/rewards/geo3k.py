r"""`--rm-type geo3k`: nine tenths for the boxed answer, one tenth for thoughts followed by a box."""

from __future__ import annotations

from typing import Any

from relax_engine.rewards import math
from relax_engine.rewards.boxed import last_boxed
from relax_engine.rewards.extract import THOUGHTS_END
from relax_engine.types import Sample

FORMAT_WEIGHT = 0.1
check_label = math.check_label
warm_up = math.warm_up


def geo3k_reward(args: Any, sample: Sample) -> float:
    r"""`0.9 * correct + 0.1 * formatted`, in [0, 1].

    Correct is what `math` says. Formatted means thoughts, closed by `</think>`, and a `\boxed{...}` after them; their
    opening tag may have been part of the prompt.
    """
    _, thought, answer = sample.response.rpartition(THOUGHTS_END)
    formatted = bool(thought) and last_boxed(answer) is not None
    return (1 - FORMAT_WEIGHT) * math.math_reward(args, sample) + FORMAT_WEIGHT * formatted
