"""Assignments of a script.

What lives here: scalars, arrays, items of arrays, and taking back what held for one command. What does not: expansion.
"""

from __future__ import annotations

from relax_engine.migrate.shell.arithmetic import UnknownNumberError
from relax_engine.migrate.shell.expand import Expander, Variables
from relax_engine.migrate.shell.syntax import Assignment, Parameter, Word

_LARGEST_INDEX = 10_000


def assign(variables: Variables, expander: Expander, assignment: Assignment) -> None:
    """Do one assignment."""
    name, value = assignment.name, assignment.value
    if isinstance(value, list):
        items = [field for word in value for field in expander.fields(word)]
        variables.arrays[name] = [*variables.arrays.get(name, []), *items] if assignment.append else items
        variables.scalars.pop(name, None)
        return
    text = expander.text(value)
    if not text and _is_own_default(name, value) and variables.scalar(name) is None:
        return
    if assignment.index is not None:
        _assign_item(variables, expander, name, assignment.index, text)
    elif assignment.append:
        variables.assign(name, (variables.scalar(name) or "") + text)
    else:
        variables.assign(name, text)


def restore(variables: Variables, name: str, saved: Variables) -> None:
    """Give a scalar the value that it had in `saved`."""
    variables.scalars.pop(name, None)
    if name in saved.scalars:
        variables.scalars[name] = saved.scalars[name]


def _assign_item(variables: Variables, expander: Expander, name: str, index: Word, text: str) -> None:
    try:
        position = expander.number(index)
    except UnknownNumberError:
        return
    items = variables.arrays.setdefault(name, [])
    if 0 <= position < _LARGEST_INDEX:
        items.extend([""] * (position + 1 - len(items)))
        items[position] = text


def _is_own_default(name: str, value: Word) -> bool:
    """`NAME=${NAME:-}` asks for a variable from outside and leaves it unset."""
    part = value[0] if len(value) == 1 else None
    return isinstance(part, Parameter) and part.name == name and part.operator in ("-", ":-")
