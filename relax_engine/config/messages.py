"""Validation errors in the words of a user: flag, value, bound.

What lives here: the translation of pydantic's error records. What does not: validation.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from relax_engine.config.fields import all_fields, flag_name
from relax_engine.utils.suggest import nearest

_EXPECTED = {
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("must be at least", "ge"),
    "greater_than": ("must be greater than", "gt"),
    "less_than_equal": ("must be at most", "le"),
    "less_than": ("must be less than", "lt"),
}


def describe(error: ValidationError) -> str:
    """All errors of `error`, one per line, as `--flag value: what must hold (unit)`."""
    return "\n".join(dict.fromkeys(_one(record) for record in error.errors(include_url=False)))


def _one(record: Any) -> str:
    location = [str(part) for part in record["loc"]]
    name = location[1] if len(location) > 1 else location[0]
    inside = ".".join(part for part in location[2:] if part != "[key]")
    where = flag_name(name) + (f" (at {inside})" if inside else "")
    value = "" if record["input"] is None else f" {record['input']}"
    return f"{where}{value}: {_requirement(record, name)}"


def _requirement(record: Any, name: str) -> str:
    kind, context = record["type"], record.get("ctx", {})
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        spec = all_fields().get(name)
        unit = f" {spec.unit}" if spec is not None and spec.unit else ""
        return f"{words} {context[key]}{unit}"
    if kind == "literal_error":
        choices = [part.strip().strip("'") for part in context["expected"].replace(" or ", ", ").split(",")]
        match = nearest(str(record["input"]), choices)
        return f"must be one of {', '.join(choices)}" + (f"; did you mean {match}?" if match else "")
    if kind == "value_error":
        return str(context["error"])
    return _EXPECTED.get(kind, record["msg"][:1].lower() + record["msg"][1:])
