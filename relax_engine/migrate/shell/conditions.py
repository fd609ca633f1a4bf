"""`[ ... ]` and `[[ ... ]]`.

What lives here: the operators of `test`. What does not: expansion of their words.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from relax_engine.migrate.shell.symbols import is_known

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_FILES = {"-e", "-f", "-d", "-r", "-w", "-x", "-s", "-L", "-h", "-p", "-S"}


class UndecidedError(ValueError):
    """The result depends on something that is known only when the script runs."""


def test(words: list[str]) -> bool:
    """The result of a condition.

    Raises:
        UndecidedError: it asks for a file, or compares unknown text.
    """
    return _Condition(words).disjunction()


class _Condition:
    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.at = 0

    def _next(self) -> str | None:
        return self.words[self.at] if self.at < len(self.words) else None

    def disjunction(self) -> bool:
        result = self._conjunction()
        while self._next() in ("||", "-o"):
            self.at += 1
            result = self._conjunction() or result
        return result

    def _conjunction(self) -> bool:
        result = self._negation()
        while self._next() in ("&&", "-a"):
            self.at += 1
            result = self._negation() and result
        return result

    def _negation(self) -> bool:
        if self._next() == "!":
            self.at += 1
            return not self._negation()
        if self._next() == "(":
            self.at += 1
            result = self.disjunction()
            self.at += 1
            return result
        return self._primary()

    def _primary(self) -> bool:
        word = self._next()
        if word is None:
            return False
        rest = self.words[self.at + 1 : self.at + 3]
        if len(rest) == 2 and (rest[0] in _NUMBERS or rest[0] in ("=", "==", "!=", "=~", "<", ">")):
            self.at += 3
            return _compare(word, rest[0], rest[1])
        if rest and (word in _FILES or word in ("-z", "-n", "-v")):
            self.at += 2
            if word in _FILES or not is_known(rest[0]):
                raise UndecidedError(f"{word} {rest[0]}")
            return (not rest[0]) if word == "-z" else bool(rest[0])
        self.at += 1
        return bool(word)


def _compare(left: str, operator: str, right: str) -> bool:
    if not (is_known(left) and is_known(right)):
        raise UndecidedError(f"{left} {operator} {right}")
    if operator in _NUMBERS:
        try:
            return _NUMBERS[operator](int(left), int(right))
        except ValueError:
            raise UndecidedError(f"{left} {operator} {right}") from None
    if operator == "=~":
        try:
            return re.search(right, left) is not None
        except re.error:
            raise UndecidedError(f"{left} =~ {right}") from None
    if operator in "<>":
        return left < right if operator == "<" else left > right
    return fnmatch.fnmatchcase(left, right) == (operator != "!=")
