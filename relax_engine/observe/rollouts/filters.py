"""Filters of recorded samples: `reward>0.5`, `status=truncated`, `response~word`, as SQL with parameters.

What lives here: the fields that can be asked for, and the grammar. No text of a user's becomes SQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from relax_engine.errors import RelaxError
from relax_engine.utils.suggest import nearest

NUMBERS = (
    "step",
    "sample_index",
    "group_index",
    "reward",
    "normalized_reward",
    "prompt_length",
    "response_length",
    "trained_length",
    "mean_log_prob",
    "first_version",
    "last_version",
    "abort_count",
    "environment_seconds",
)
TIMES = ("admitted", "started", "generated", "scored", "placed")
"""Seconds since the epoch."""
TEXTS = ("status", "engine", "label", "prompt", "response", "metadata", "media")
TRAINED = ("age", "trained", "advantage", "kl", "log_prob_gap")
"""Numbers of the table `training`."""

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"s.{name}" for name in (*NUMBERS, *TEXTS)},
        **{name: f"t.{name}" for name in TRAINED},
        **{name: f"s.{name}" for name in TIMES},
        "admission_seconds": "(s.started - s.admitted)",
        "generation_seconds": "(s.generated - s.started)",
        "reward_seconds": "(s.scored - s.generated)",
        "waiting_seconds": "(s.placed - s.scored)",
    }
)
"""What can be filtered, sorted and shown, and the expression for it; beside these, `reward.NAME` is a part of it."""

_TERM = re.compile(
    r"\s*(?P<field>[a-z_]+(?:\.[^\s=<>!~]+)?)\s*(?P<operator>!=|<=|>=|!~|=|<|>|~)\s*(?P<value>.*?)\s*$", re.S
)
_PART = "reward."


class QueryError(RelaxError):
    """A filter, a field or a run that there is not."""


@dataclass(frozen=True, slots=True)
class Expression:
    """SQL with `?` for its parameters, and whether it needs the table `training`."""

    sql: str
    parameters: tuple[Any, ...]
    trained: bool


def field(name: str) -> Expression:
    """The expression for a field.

    Raises:
        QueryError: there is no such field.
    """
    if name.startswith(_PART):
        return Expression("s.reward_parts[?]", (name.removeprefix(_PART),), trained=False)
    if name not in FIELDS:
        match = nearest(name, FIELDS)
        hint = f"; did you mean {match!r}?" if match else f"; there are {', '.join(FIELDS)} and reward.NAME"
        raise QueryError(f"samples have no field {name!r}{hint}")
    return Expression(FIELDS[name], (), trained=name in TRAINED)


def condition(text: str) -> Expression:
    """The condition that `text` says: field, operator, value.

    Operators are `=`, `!=`, `<`, `<=`, `>`, `>=`; for texts `~` (contains, whatever the case) and `!~`. `=` takes a
    range of numbers too: `step=10..20`.

    Raises:
        QueryError: it is none, or its value is no number where one is needed.
    """
    found = _TERM.match(text)
    if found is None:
        raise QueryError(f"{text!r} is no filter; write FIELD OPERATOR VALUE, as in reward>0.5 or response~word")
    name, operator, value = found["field"], found["operator"], found["value"]
    named = field(name)
    if name in TEXTS:
        return _text_condition(text, named, operator, value)
    if operator in ("~", "!~"):
        raise QueryError(f"{text!r}: {name} is a number; use one of = != < <= > >=")
    low, dots, high = value.partition("..")
    if dots and operator == "=":
        bounds = (_number(text, low), _number(text, high))
        return Expression(f"{named.sql} BETWEEN ? AND ?", (*named.parameters, *bounds), named.trained)
    # In single precision, as recorded: `reward=0.1` finds a reward of 0.1.
    right = "CAST(? AS FLOAT)" if name in ("reward", "normalized_reward") else "?"
    return Expression(f"{named.sql} {operator} {right}", (*named.parameters, _number(text, value)), named.trained)


def conditions(texts: Sequence[str]) -> Expression:
    """All of the conditions at once."""
    terms = [condition(text) for text in texts if text.strip()]
    return Expression(
        " AND ".join(term.sql for term in terms) or "TRUE",
        tuple(value for term in terms for value in term.parameters),
        any(term.trained for term in terms),
    )


def _text_condition(text: str, named: Expression, operator: str, value: str) -> Expression:
    match operator:
        case "=" | "!=":
            return Expression(f"{named.sql} {operator} ?", (value,), trained=False)
        case "~" | "!~":
            negation = "NOT " if operator == "!~" else ""
            sql = f"{negation}contains(lower(coalesce({named.sql}, '')), ?)"
            return Expression(sql, (value.lower(),), trained=False)
    raise QueryError(f"{text!r}: texts are compared with =, !=, ~ (contains) and !~")


def _number(text: str, value: str) -> float | int:
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError as error:
        raise QueryError(f"{text!r}: {value!r} is no number") from error
