"""Dynamic sampling filters: which finished prompt groups are worth training on.

What lives here: pure functions of one group's scored samples, and the reading of what a user's filter returns. What
does not: replacing the groups that are left out, and the bound on attempts (the rollout role).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from relax_engine.types import Sample, SampleStatus


@dataclass(frozen=True, slots=True)
class FilterOutput:
    """Whether a group is trained on. `reason` says why not; groups left out are counted by it."""

    keep: bool
    reason: str | None = None


LOST = FilterOutput(False, "failed")
"""Of a group with a sample that could not be made."""


def is_lost(samples: Sequence[Sample]) -> bool:
    """Whether a sample of the group could not be made: it is left out as a whole, so that no group is lopsided."""
    return any(sample.status is SampleStatus.FAILED for sample in samples)


SampleFilter = Callable[[Any, Sequence[Sample]], "FilterOutput | bool"]
"""(args, samples of one group) -> decision: what `--dynamic-sampling-filter-path` names."""


def apply_filter(function: SampleFilter, args: Any, samples: Sequence[Sample]) -> FilterOutput:
    """The decision of a filter that returns a `FilterOutput`, any object with `keep` and `reason`, or a bool.

    A group that is left out without a reason is counted under the filter's name.

    Raises:
        TypeError: the filter returned something else.
    """
    result: Any = function(args, samples)
    name = getattr(function, "__name__", type(function).__name__)
    keep = getattr(result, "keep", result)
    if not isinstance(keep, bool):
        raise TypeError(
            f"filter {name!r} returned {result!r} for group {samples[0].group_index}; "
            "return True, False, or FilterOutput(keep, reason)"
        )
    if keep:
        return FilterOutput(True)
    return FilterOutput(False, getattr(result, "reason", None) or name)


def check_reward_nonzero_std(args: Any, samples: Sequence[Sample]) -> FilterOutput:
    """Keep a group whose rewards differ: with equal ones every group-relative advantage is 0.

    Rewards that are NaN or infinite take no part; a group with fewer than two others holds no comparison. Source:
    DAPO (arXiv 2503.14476), "dynamic sampling".

    Args:
        args: Reads `reward_key`.
        samples: The scored samples of one group.

    Returns:
        Reason `zero_std_<reward>` (to one decimal) or `no_comparison` where the group is left out.
    """
    rewards = [value for value in _rewards(args, samples) if math.isfinite(value)]
    if len(rewards) < 2:
        return FilterOutput(False, "no_comparison")
    if max(rewards) == min(rewards):
        return FilterOutput(False, f"zero_std_{rewards[0]:.1f}")
    return FilterOutput(True)


def check_no_failure(args: Any, samples: Sequence[Sample]) -> FilterOutput:
    """Keep a group all of whose rewards are finite numbers; reason `reward_not_finite`."""
    if all(math.isfinite(value) for value in _rewards(args, samples)):
        return FilterOutput(True)
    return FilterOutput(False, "reward_not_finite")


def _rewards(args: Any, samples: Sequence[Sample]) -> list[float]:
    return [sample.get_reward_value(args.reward_key) for sample in samples]
