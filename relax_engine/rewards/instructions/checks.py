"""The table of instruction ids, and the check of one response against one instruction."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[..., bool]
MODULES = ("ifeval", "ifbench_counts", "ifbench_words", "ifbench_formats", "ifbench_tasks")
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "less than": lambda found, bound: found < bound,
    "at least": lambda found, bound: found >= bound,
}

_checks: dict[str, Check] = {}


def check(instruction_id: str) -> Callable[[Check], Check]:
    """Make a function `(response, **arguments) -> bool` the check of an instruction."""

    def register(function: Check) -> Check:
        assert instruction_id not in _checks
        _checks[instruction_id] = function
        return function

    return register


@functools.cache
def instruction_ids() -> tuple[str, ...]:
    """Every instruction that can be checked, sorted."""
    for module in MODULES:
        importlib.import_module(f"relax_engine.rewards.instructions.{module}")
    return tuple(sorted(_checks))


def follows(response: str, instruction_id: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a response follows an instruction; an empty one follows none.

    Arguments that are None are left out, and whole floats, which JSON tables have for integers, become integers.

    Raises:
        ValueError: an unknown instruction, or arguments that do not fit it.
    """
    if instruction_id not in instruction_ids():
        nearest = difflib.get_close_matches(instruction_id, instruction_ids(), n=1)
        raise ValueError(
            f"unknown instruction {instruction_id!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else "")
        )
    given = {name: _whole(value) for name, value in arguments.items() if value is not None}
    if not response.strip():
        return False
    try:
        return bool(_checks[instruction_id](response, **given))
    except TypeError as error:
        raise ValueError(
            f"instruction {instruction_id!r} does not take the arguments {sorted(given)}: {error}"
        ) from error


def compare(found: float, relation: str, bound: float) -> bool:
    """`found` compared with `bound` as an instruction words it.

    Raises:
        ValueError: neither `less than` nor `at least`.
    """
    if relation not in COMPARISONS:
        raise ValueError(f"relation {relation!r}: write one of {', '.join(COMPARISONS)}")
    return COMPARISONS[relation](found, bound)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
