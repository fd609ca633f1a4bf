"""Rewards by name.

What lives here: the built-in names and registration. What does not: the rewards themselves, which are imported only
where they run, and which of them a sample gets (`choice`).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from relax_engine.rewards.functions import RewardFunction, is_async

BOXED_PREFIX = "boxed_"


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """A reward function.

    Attributes:
        reference: Its importable path.
        run_async: Whether it is a coroutine function.
        lowest: The score of a response whose call hangs or kills its process; None makes that an error.
        boxed: Whether it sees the content of the last box as the response.
    """

    reference: str
    run_async: bool = False
    lowest: float | None = None
    boxed: bool = False


def _built_in(module: str, function: str = "", lowest: float = 0.0) -> RewardEntry:
    return RewardEntry(f"relax_engine.rewards.{module}:{function or f'{module}_reward'}", lowest=lowest)


def _remote(module: str, function: str = "") -> RewardEntry:
    return RewardEntry(f"relax_engine.rewards.{module}:{function or f'{module}_reward'}", run_async=True)


BUILTIN: Mapping[str, RewardEntry] = {
    "code": _built_in("code"),
    "dapo": _built_in("dapo", lowest=-1.0),
    "dapo-genrm": _remote("genrm", "dapo_genrm_reward"),
    "dapo_strict_box": _built_in("dapo", "dapo_strict_box_reward", lowest=-1.0),
    "deepscaler": _built_in("deepscaler"),
    "dummy": _built_in("dummy"),
    "exact_match": _built_in("exact_match"),
    "f1": _built_in("f1"),
    "format": _built_in("format"),
    "genrm": _remote("genrm"),
    "geo3k": _built_in("geo3k"),
    "gpqa": _built_in("gpqa"),
    "gsm8k": _built_in("gsm8k"),
    "ifbench": _built_in("instruction_following", "instruction_reward"),
    "ifeval": _built_in("instruction_following", "instruction_reward"),
    "length": _built_in("length", lowest=-1.0),
    "math": _built_in("math"),
    "mopd": _built_in("mopd", lowest=-1.0),
    "multiple_choice": _built_in("multiple_choice"),
    "openr1mm": _built_in("openr1mm"),
    "openr1mm_accuracy_format": _built_in("openr1mm", "openr1mm_accuracy_format_reward"),
    "openr1mm_benchmark": _built_in("openr1mm_benchmark"),
    "random": _built_in("random_score", "random_reward"),
    "remote_rm": _remote("remote_rm"),
    "repetition": _built_in("repetition", lowest=-1.0),
    "search_em": _built_in("search_em"),
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
    """The reward of that name, which may begin with `boxed_`.

    Raises:
        ValueError: unknown name; the message has the nearest one and all names.
    """
    entry = _registered.get(name) or BUILTIN.get(name)
    if entry is not None:
        return entry
    if name.startswith(BOXED_PREFIX):
        return dataclasses.replace(reward_entry(name.removeprefix(BOXED_PREFIX)), boxed=True)
    nearest = difflib.get_close_matches(name, reward_names(), n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"unknown reward {name!r}{hint} (known: {', '.join(reward_names())})")
