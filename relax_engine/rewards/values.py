"""What counts as a reward: one finite number, or a dictionary that holds one.

What lives here: checking what reward functions return. What does not: meaning or scale.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

Reward = float | dict[str, Any]


def check_reward(value: Any, reward_key: str | None) -> Reward:
    """The reward as a float, or as a dictionary whose `reward_key` entry is a float.

    Raises:
        ValueError: not a number, not finite, a dictionary without the key; says which.
    """
    if not isinstance(value, Mapping):
        return _finite(value, "it returned")
    if reward_key is None:
        raise ValueError(f"it returned a dict with keys {sorted(map(str, value))}; name the score's with --reward-key")
    if reward_key not in value:
        raise ValueError(f"it returned a dict without --reward-key {reward_key!r}; keys are {sorted(map(str, value))}")
    return {**value, reward_key: _finite(value[reward_key], f"the value under {reward_key!r} is")}


def check_group_rewards(value: Any, size: int, reward_key: str | None) -> list[Reward]:
    """One reward per sample of a group.

    Raises:
        ValueError: not a sequence, wrong length, or an entry that is no reward (with its position).
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"with --group-rm it must return a list of {size} rewards, it returned {_show(value)}")
    if len(value) != size:
        raise ValueError(f"with --group-rm it must return one reward per sample: {size} samples, {len(value)} rewards")
    rewards = []
    for position, item in enumerate(value):
        try:
            rewards.append(check_reward(item, reward_key))
        except ValueError as error:
            raise ValueError(f"entry {position} of the group: {error}") from None
    return rewards


def _finite(value: Any, what: str) -> float:
    if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:  # a NumPy or torch scalar
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise ValueError(f"{what} {_show(value)}, not a number")
    if not math.isfinite(value):
        raise ValueError(f"{what} {float(value)}, which is not finite")
    return float(value)


def _show(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:80]!r}"
