"""`--rm-type repetition`: a penalty for saying the same again (Yeo et al., arXiv 2502.03373, appendix)."""

from __future__ import annotations

import math
from typing import Any

from relax_engine.types import Sample


def repetition_reward(args: Any, sample: Sample, *, ngram: int = 20, penalty: float = -1.0) -> float:
    """`penalty * (1 - distinct / all)` over the runs of `ngram` words; in [penalty, 0].

    0.0 for responses of fewer than `ngram` words, and -0.0 never. A text without white space, as Chinese, is counted in
    characters.

    Raises:
        ValueError: `ngram` is less than 1, or the penalty is positive or not finite.
    """
    if ngram < 1:
        raise ValueError(f"repetition ngram must be at least 1, got {ngram}")
    if not math.isfinite(penalty) or penalty > 0:
        raise ValueError(f"repetition penalty must be finite and at most 0, got {penalty}")
    words: list[str] | str = sample.response.lower().split()
    if len(words) * 20 < len(sample.response):
        words = sample.response
    runs = [tuple(words[start : start + ngram]) for start in range(len(words) - ngram + 1)]
    return penalty * (1 - len(set(runs)) / len(runs)) + 0.0 if runs else 0.0
