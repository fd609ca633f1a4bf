"""What every configuration section is: a frozen pydantic model whose docstrings are its help.

What lives here: the base class, the field helper, and readers for values written as text.
What does not: any field, and any rule between fields (`relax_engine.config.rules`).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A group of fields. Field names are flag names in snake_case, unique over all sections."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), ser_json_inf_nan="strings"
    )


def flag(
    default: Any = None,
    *,
    unit: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """A field with bounds and a unit, both shown in `--help` and in `docs/configuration.md`."""
    return Field(default, ge=ge, gt=gt, le=le, lt=lt, json_schema_extra={"unit": unit} if unit else None)


def group(factory: Any) -> Any:
    """A field whose default is a fresh container from `factory`."""
    return Field(default_factory=factory)


def read_literal(text: str) -> Any:
    """The value of `text`, written as JSON or as a Python literal.

    Raises:
        ValueError: it is neither; the message has the position of the JSON error.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as json_error:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise ValueError(f"not valid JSON: {json_error.msg} at column {json_error.colno}") from None


def read_mapping(value: Any) -> Any:
    """The dictionary that `value`, if it is text, spells as JSON; everything else as it is.

    Raises:
        ValueError: text that is no JSON object.
    """
    if not isinstance(value, str):
        return value
    parsed = read_literal(value)
    if not isinstance(parsed, Mapping):
        raise ValueError("must be a JSON object, such as '{\"key\": 1}'")
    return dict(parsed)


def _read_list(value: Any) -> Any:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple) and len(value) == 1 and _is_bracketed(value[0]):
        return split_bracketed(value[0])
    return value


def _is_bracketed(value: Any) -> bool:
    return isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]")


def split_bracketed(text: str) -> list[Any]:
    """The items of `"['a', 'b']"`, `'["a", "b"]'` or, as shells often leave it, `[a, b]`."""
    try:
        return list(read_literal(text))
    except ValueError:
        return [item.strip().strip("'\"") for item in text.strip()[1:-1].split(",") if item.strip()]


JsonObject = Annotated[dict[str, Any], BeforeValidator(read_mapping)]
"""A dictionary; text is read as JSON."""

StrList = Annotated[list[str], BeforeValidator(_read_list)]
"""A list of strings; one bracketed text (`"['a.parquet', 'b.parquet']"`) is taken apart."""

IntList = Annotated[list[int], BeforeValidator(_read_list)]
"""A list of integers; one bracketed text is taken apart."""
