r"""`--rm-type deepscaler`: `math` on what follows the thoughts."""

from __future__ import annotations

import dataclasses
from typing import Any

from relax_engine.rewards import math
from relax_engine.rewards.extract import THOUGHTS_END, thoughts_unfinished
from relax_engine.types import Sample

ANSWER_MARKS = (THOUGHTS_END, "###Response")
check_label = math.check_label
warm_up = math.warm_up


def deepscaler_reward(args: Any, sample: Sample, *, require_mark: bool = False) -> float:
    r"""1.0 if the last `\boxed{...}` after the last `</think>` (or else after `###Response`) equals the label, else
    0.0.

    A response without either mark is graded as a whole if it is an answer without thoughts, and scores 0.0 if it ends
    within them. `require_mark` scores every response without a mark 0.0, as DeepScaleR does.
    """
    for mark in ANSWER_MARKS:
        _, found, answer = sample.response.rpartition(mark)
        if found:
            return math.math_reward(args, dataclasses.replace(sample, response=answer))
    if require_mark or thoughts_unfinished(sample):
        return 0.0
    return math.math_reward(args, sample)
