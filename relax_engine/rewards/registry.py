"""Rewards by name.

What lives here: the built-in names, registration, and which reward a sample gets. What does not:
the rewards themselves, which are imported only where they run.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from relax_engine.rewards.functions import RewardFunction, is_async


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """A reward function.

    Attributes:
        reference: Its importable path.
        run_async: Whether it is a coroutine function.
        timeout_score: The score of a response whose call missed its deadline; None makes that an error.
    """

    reference: str
    run_async: bool = False
    timeout_score: float | None = None


BUILTIN: Mapping[str, RewardEntry] = {
    "dapo": RewardEntry("relax_engine.rewards.dapo:dapo_reward"),
    "exact_match": RewardEntry("relax_engine.rewards.exact_match:exact_match_reward"),
    "math": RewardEntry("relax_engine.rewards.math:math_reward", timeout_score=0.0),
    "random": RewardEntry("relax_engine.rewards.random_score:random_reward"),
}

_registered: dict[str, RewardEntry] = {}


def reward_names() -> list[str]:
    """Every known value of `--rm-type`, sorted."""
    return sorted({*BUILTIN, *_registered})


def register_reward(name: str, function: RewardFunction | str, *, run_async: bool = False) -> None:
    """Make a reward known under a name of your own.

    Args:
        name: The value of `--rm-type` or of `metadata["rm_type"]`.
        function: A module-level function, or its path (`package.module:function`).
        run_async: For a path: whether it is a coroutine function. A function tells by itself.

    Raises:
        ValueError: the name is taken, or worker processes could not import the function.
    """
    if isinstance(function, str):
        entry = RewardEntry(function, run_async)
    else:
        qualified = getattr(function, "__qualname__", "")
        if not qualified.isidentifier() or function.__module__ == "__main__":
            raise ValueError(
                f"reward {name!r}: {function!r} cannot be imported by worker processes; "
                "define it at the top level of a module"
            )
        entry = RewardEntry(f"{function.__module__}:{qualified}", is_async(function))
    if name in BUILTIN or _registered.get(name, entry) != entry:
        raise ValueError(f"reward {name!r} is already registered; choose another name")
    _registered[name] = entry


def reward_entry(name: str) -> RewardEntry:
    """The reward of that name.

    Raises:
        ValueError: unknown name; the message has the nearest one and all names.
    """
    entry = _registered.get(name) or BUILTIN.get(name)
    if entry is None:
        nearest = difflib.get_close_matches(name, reward_names(), n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"unknown reward {name!r}{hint} (known: {', '.join(reward_names())})")
    return entry
