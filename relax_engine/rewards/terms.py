"""A reward made of several, each with a weight and arguments of its own.

What lives here: reading `--reward-terms`, and the sum. What does not: scoring the terms (`executor`).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OWN_REWARD = "rm_type"
TOTAL = "score"
PARTS_OF_DICTS = ("score", "reward")


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One addend: `weight` times the reward `reward`, called with `arguments`; `name` is its metric.

    The reward `rm_type` stands for the one that the sample would have without terms.
    """

    name: str
    weight: float
    reward: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def read_terms(terms: Mapping[str, Any]) -> tuple[RewardTerm, ...]:
    """The terms of `{name: weight}` or `{name: {"weight": w, "reward": name, argument: value, ...}}`.

    The reward is the one called `name` if none is given, and the weight 1.

    Raises:
        ValueError: a weight that is no finite number, or a name that a metric cannot have.
    """
    return tuple(_read(name, value) for name, value in terms.items())


def combine(terms: Sequence[RewardTerm], scores: Sequence[float], key: str) -> dict[str, Any]:
    """`{key: sum of weight * score, name: score, ...}`."""
    total = math.fsum(term.weight * score for term, score in zip(terms, scores, strict=True))
    return {key: total, **{term.name: score for term, score in zip(terms, scores, strict=True)}}


def term_score(value: Any) -> float:
    """The number that a term's reward is: itself, or the entry `score` or `reward` of a dictionary.

    Raises:
        ValueError: neither, or not finite.
    """
    if isinstance(value, Mapping):
        key = next((key for key in PARTS_OF_DICTS if key in value), None)
        if key is None:
            raise ValueError(f"it returned a dict with keys {sorted(map(str, value))}, none of which is `score`")
        value = value[key]
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"it returned {str(value)[:80]!r}, which is no finite number")
    return float(value)


def _read(name: str, value: Any) -> RewardTerm:
    given = dict(value) if isinstance(value, Mapping) else {"weight": value}
    weight = given.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ValueError(f"reward term {name!r}: its weight {weight!r} is no finite number")
    if name == TOTAL:
        raise ValueError(f"reward term {name!r}: that is the name of the sum; choose another, and give its `reward`")
    return RewardTerm(name, float(weight), str(given.pop("reward", name)), given)
