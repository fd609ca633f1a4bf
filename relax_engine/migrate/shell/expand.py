"""From words to text: parameters, arrays, default values, patterns.

What lives here: variables and the expansion of words. What does not: which commands run (`interpreter`).
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from relax_engine.migrate.shell import arithmetic
from relax_engine.migrate.shell.symbols import is_known, render, split_words, symbol, variable
from relax_engine.migrate.shell.syntax import Arithmetic, Literal, Parameter, Part, Program, Substitution, Word


@dataclass(slots=True)
class Variables:
    """What a script has assigned; `arguments` are its positional parameters, None when nobody gave any."""

    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] | None = None

    def copy(self) -> Variables:
        """An independent copy, as a subshell has it."""
        arrays = {name: list(items) for name, items in self.arrays.items()}
        return Variables(dict(self.scalars), arrays, None if self.arguments is None else list(self.arguments))

    def assign(self, name: str, value: str) -> None:
        """Set a variable; an array's first item if it is one."""
        if name in self.arrays:
            self.arrays[name][:1] = [value]
        else:
            self.scalars[name] = value

    def scalar(self, name: str) -> str | None:
        """The value of a variable or positional parameter; None if nothing has set it."""
        if name.isdigit() and name != "0":
            given = self.arguments or []
            return given[int(name) - 1] if int(name) <= len(given) else None
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else ""
        return self.scalars.get(name)


class Expander:
    """Expands words with `variables`; `run` gives the output of a command substitution, None if unknown.

    With `lenient` unset variables are empty, as in tests; else they become unknown text. `unsure` becomes true as soon
    as a value that nobody has set was needed.
    """

    def __init__(self, variables: Variables, run: Callable[[Program], str | None]) -> None:
        """Expand over `variables`."""
        self.variables = variables
        self.lenient = False
        self.unsure = False
        self._run = run

    def text(self, word: Word) -> str:
        """The word as one string, as in an assignment."""
        return "".join(" ".join(self._items(part)) for part in _with_home(word))

    def fields(self, word: Word) -> list[str]:
        """The words that `word` becomes in a command: unquoted values are split, arrays give a word for each item."""
        done: list[str] = []
        current: str | None = None
        for part in _with_home(word):
            if isinstance(part, Literal):
                current = (current or "") + part.text
                continue
            items = self._items(part)
            if not part.quoted:
                joined = " ".join(items)
                if current is not None and joined[:1].isspace():
                    done.append(current)
                    current = None
                items = split_words(joined)
            elif not items:
                if not (isinstance(part, Parameter) and _is_list(part)):
                    current = current or ""
                continue
            for position, item in enumerate(items):
                if position:
                    done.append(current or "")
                    current = None
                current = (current or "") + item
        return done if current is None else [*done, current]

    def number(self, word: Word) -> int:
        """The value of an arithmetic expression.

        Raises:
            UnknownNumberError: something in it is unknown.
        """
        return arithmetic.evaluate(self.text(word), lambda name: self._named(name) or "", self.variables.assign)

    def _named(self, name: str) -> str | None:
        value = self.variables.scalar(name)
        if value is None or not is_known(value):
            self.unsure = True
        return value

    def _items(self, part: Part) -> list[str]:
        if isinstance(part, Literal):
            return [part.text]
        if isinstance(part, Substitution):
            output = self._run(part.program)
            if output is None:
                self.unsure = True
                return [symbol(_later(part.text))]
            return [output.rstrip("\n")]
        if isinstance(part, Arithmetic):
            try:
                return [str(self.number(part.expression))]
            except arithmetic.UnknownNumberError:
                self.unsure = True
                return [symbol(f"$(({render(self.text(part.expression))}))")]
        return self._parameter(part)

    def _parameter(self, part: Parameter) -> list[str]:
        if part.prefix == "!":
            target = self.variables.scalar(part.name)
            return self._parameter(Parameter(target or "", part.quoted)) if target else [self._unset(part.name)]
        if _is_list(part):
            items = self._list(part)
            if part.prefix == "#":
                return [str(len(items))]
            if part.operator == ":":
                return _slice(items, [self.number(word) for word in part.arguments], shift=part.name in "@*")
            if part.quoted and "*" in (part.name, _index(part)):
                items = [" ".join(items)]
            if part.operator in ("", "-", ":-") or not items:
                return items or (self._default_items(part) if part.operator in ("-", ":-") else [])
            return [self._transform(item, part) for item in items]
        if part.name == "#":
            self.unsure = self.unsure or self.variables.arguments is None
            return [str(len(self.variables.arguments or []))]
        value = self._value(part)
        if part.prefix == "#":
            return [str(len(value or ""))]
        return [self._operate(part, value)]

    def _list(self, part: Parameter) -> list[str]:
        if part.name in "@*":
            return list(self.variables.arguments or [])
        if part.name in self.variables.arrays:
            return list(self.variables.arrays[part.name])
        value = self.variables.scalars.get(part.name)
        return [] if value is None else [value]

    def _default_items(self, part: Parameter) -> list[str]:
        return self.fields(part.arguments[0])

    def _value(self, part: Parameter) -> str | None:
        if part.index is None:
            return self._named(part.name)
        items = self._list(part)
        try:
            return items[self.number(part.index)]
        except (arithmetic.UnknownNumberError, IndexError):
            return None

    def _operate(self, part: Parameter, value: str | None) -> str:
        operator = part.operator
        if operator in (":-", "-", ":=", "="):
            if value is None or (not value and operator[0] == ":"):
                default = self.text(_with_home(part.arguments[0]))
                if "=" in operator:
                    self.variables.assign(part.name, default)
                return default
            return value
        if operator in (":+", "+"):
            return self.text(part.arguments[0]) if value or (value is not None and operator == "+") else ""
        if value is None:
            return self._unset(part.name)
        if operator in ("", "?", ":?"):
            return value
        return self._transform(value, part)

    def _unset(self, name: str) -> str:
        self.unsure = True
        return "" if self.lenient or name in "?!$-_" else variable(name)

    def _transform(self, value: str, part: Parameter) -> str:
        operator, arguments = part.operator, part.arguments
        if operator in (",,", "^^", ",", "^"):
            change = str.lower if operator[0] == "," else str.upper
            return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
        if operator == ":":
            return "".join(_slice(list(value), [self.number(word) for word in arguments]))
        pattern = self.text(arguments[0])
        if operator[0] == "/":
            expression = _glob(pattern)
            anchored = {"/#": f"^{expression}", "/%": f"{expression}$"}.get(operator, expression)
            replacement = self.text(arguments[1])
            return re.sub(anchored, lambda _: replacement, value, count=0 if operator == "//" else 1)
        return _strip(value, pattern, operator)


def _later(command: str) -> str:
    """What stands for a command's unknown output: a date is asked for later, everything else is left to the user."""
    words = command.split()
    if words[:1] == ["date"] and re.fullmatch(r"date(\s+[\"']?\+[^`$;&|()]*)?", command):
        return f"$({command})"
    name = re.sub(r"\W", "_", posixpath.basename(words[0])) if words else "nothing"
    return f"${{OUTPUT_OF_{name}:?set it to what this command prints}}"


def _is_list(part: Parameter) -> bool:
    if part.name in "@*":
        return True
    return _index(part) in ("@", "*")


def _index(part: Parameter) -> str:
    first = part.index[0] if part.index else None
    return first.text if isinstance(first, Literal) and part.index == (first,) else ""


def _with_home(word: Word) -> Word:
    first = word[0] if word else None
    if isinstance(first, Literal) and not first.quoted and (first.text == "~" or first.text.startswith("~/")):
        return (Parameter("HOME", quoted=True), Literal(first.text[1:]), *word[1:])
    return word


def _slice(items: list[str], numbers: list[int], *, shift: bool = False) -> list[str]:
    start = numbers[0] - (1 if shift else 0)
    stop = None if len(numbers) < 2 else start + numbers[1]
    return items[start:stop]


def _glob(pattern: str) -> str:
    return fnmatch.translate(pattern).removesuffix(r")\z").removesuffix(r")\Z").removeprefix("(?s:")


def _strip(value: str, pattern: str, operator: str) -> str:
    """`#` and `%`: the shortest match at the start or end taken off; doubled, the longest."""
    lengths = range(len(value) + 1) if len(operator) == 1 else range(len(value), -1, -1)
    for length in lengths:
        piece = value[:length] if operator[0] == "#" else value[len(value) - length :]
        if fnmatch.fnmatchcase(piece, pattern):
            return value[length:] if operator[0] == "#" else value[: len(value) - length]
    return value
