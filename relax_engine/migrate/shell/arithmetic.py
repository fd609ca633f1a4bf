"""Integer arithmetic of `$(( ))`.

What lives here: a recursive-descent evaluator with C's precedence. What does not: expansion of `$name` (`expand`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+(?:#\w+)?)|([A-Za-z_]\w*)|(\*\*|\+\+|--|<<|>>|[<>=!]=|[-+*/%&|^]=|&&|\|\||.))", re.S
)
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
    },
    {"<<": operator.lshift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},
)
_LARGEST_SHIFT = 4096


class UnknownNumberError(ValueError):
    """A variable that is no number, or text that is no expression."""


def evaluate(text: str, read: Callable[[str], str], write: Callable[[str, str], None]) -> int:
    """The value of an expression; variables are read as text, and assigned by `=`, `+=`, `++` and the like.

    Raises:
        UnknownNumberError: something in it has no known value.
    """
    return _Evaluator(text, read, write).value()


class _Evaluator:
    def __init__(self, text: str, read: Callable[[str], str], write: Callable[[str, str], None]) -> None:
        self.tokens = [next(filter(None, groups)) for groups in _TOKEN.findall(text.strip()) if any(groups)]
        self.tokens = [token for token in self.tokens if token.strip()]
        self.text, self.read, self.write = text, read, write
        self.at = 0

    def value(self) -> int:
        if not self.tokens:
            return 0
        result = self._comma()
        if self.at < len(self.tokens):
            raise UnknownNumberError(f"cannot compute {self.text!r}")
        return result

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, *tokens: str) -> str:
        token = self._next()
        if token and token in tokens:
            self.at += 1
            return token
        return ""

    def _comma(self) -> int:
        result = self._assignment()
        while self._take(","):
            result = self._assignment()
        return result

    def _assignment(self) -> int:
        name = self._next()
        sign = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if re.fullmatch(r"[A-Za-z_]\w*", name) and (sign == "=" or re.fullmatch(r"[-+*/%&|^]=", sign)):
            self.at += 2
            value = self._assignment()
            if sign != "=":
                value = self._apply(sign[0], self._number(name), value)
            self.write(name, str(value))
            return value
        return self._ternary()

    def _apply(self, sign: str, left: int, right: int) -> int:
        return next(level[sign] for level in _LEVELS if sign in level)(left, right)

    def _ternary(self) -> int:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        first = self._assignment()
        if not self._take(":"):
            raise UnknownNumberError(f"cannot compute {self.text!r}")
        second = self._assignment()
        return first if condition else second

    def _binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        result = self._binary(level + 1)
        while sign := self._take(*_LEVELS[level]):
            right = self._binary(level + 1)
            if sign in "/%" and right == 0:
                raise UnknownNumberError(f"{self.text!r} divides by 0")
            if sign in ("<<", ">>") and not 0 <= right <= _LARGEST_SHIFT:
                raise UnknownNumberError(f"{self.text!r} shifts by {right}")
            result = _LEVELS[level][sign](result, right)
        return result

    def _power(self) -> int:
        base = self._unary()
        if not self._take("**"):
            return base
        exponent = self._power()
        if not 0 <= exponent <= _LARGEST_SHIFT:
            raise UnknownNumberError(f"{self.text!r} has the exponent {exponent}")
        return int(base**exponent)

    def _unary(self) -> int:
        sign = self._take("!", "-", "+", "~", "++", "--")
        if sign in ("++", "--"):
            name = self._next()
            self.at += 1
            value = self._number(name) + (1 if sign == "++" else -1)
            self.write(name, str(value))
            return value
        if sign:
            value = self._unary()
            return {"!": int(not value), "-": -value, "+": value, "~": ~value}[sign]
        return self._primary()

    def _primary(self) -> int:
        if self._take("("):
            result = self._comma()
            if not self._take(")"):
                raise UnknownNumberError(f"cannot compute {self.text!r}")
            return result
        token = self._next()
        self.at += 1
        if re.fullmatch(r"[A-Za-z_]\w*", token):
            value = self._number(token)
            sign = self._take("++", "--")
            if sign:
                self.write(token, str(value + (1 if sign == "++" else -1)))
            return value
        return self._literal(token)

    def _number(self, name: str) -> int:
        text = self.read(name).strip()
        return self._literal(text) if text else 0

    def _literal(self, text: str) -> int:
        base, sharp, digits = text.partition("#")
        try:
            if sharp:
                return int(digits, int(base))
            return int(text, 8) if re.fullmatch(r"0[0-7]+", text) else int(text, 0)
        except ValueError:
            raise UnknownNumberError(f"{text!r} in {self.text!r} is no number") from None
