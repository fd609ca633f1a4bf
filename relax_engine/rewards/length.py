"""`--rm-type length`: a penalty for long or short responses, to be added to a reward of another kind.

Length is counted in tokens of the response. Penalties that compare the responses of a group, or use the response limit
of the run, are flags of their own (`--length-penalty-coef`, `--overlong-buffer-len`).
"""

from __future__ import annotations

from typing import Any

from relax_engine.types import Sample


def length_reward(args: Any, sample: Sample, *, target: int | None = None, slope: int = 1, minimum: int = 0) -> float:
    """0.0 for `minimum` to `target` tokens, falling linearly to -1.0 at `slope` tokens past either; in [-1, 0].

    `target` is `--rollout-max-response-len - slope` if not given.

    Raises:
        ValueError: `slope` is not positive, or `minimum` exceeds the target.
    """
    if slope < 1:
        raise ValueError(f"length slope must be at least 1 token, got {slope}")
    limit = args.rollout_max_response_len - slope if target is None else target
    if minimum > limit:
        raise ValueError(f"length minimum {minimum} exceeds the target of {limit} tokens")
    excess = max(sample.response_length - limit, minimum - sample.response_length, 0)
    return -min(excess / slope, 1.0)
