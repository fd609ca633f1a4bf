r"""Numbers written plainly: integers, decimals, fractions, mixed numbers, thousands separators, percentages.

What lives here: reading them exactly. What does not: anything with a symbol or an operation (`symbolic`).
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARACTERS = 400

_INTEGER = r"[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:\{,\}[0-9]{3})+|[0-9]{1,3}(?:\\[,!; ][0-9]{3})+"
_DECIMAL = re.compile(rf"([+-]?)\s*((?:{_INTEGER})?)(\.[0-9]*)?")
_FRACTION = re.compile(r"([+-]?)\s*(?:([0-9]+)\s*)?\\[dt]?frac\{\s*([+-]?[0-9]+)\s*\}\{\s*([+-]?[0-9]+)\s*\}")
_SLASHED = re.compile(r"([+-]?)\s*(?:([0-9]+)\s+)?([0-9]+)\s*/\s*([0-9]+)")
_PERCENT = re.compile(r"(.*?)\s*(?:\\%|%|\\text\{\s*(?:percent|\\%)\s*\}|percent)", re.DOTALL)
_REPEATING = re.compile(r"([+-]?)([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\{?([0-9]+)\}?")
_SCIENTIFIC = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]+)?)(?:[eE]|\s*(?:\\times|\\cdot)\s*10\s*\^)\s*(?:([+-]?[0-9]{1,3})|\{\s*([+-]?[0-9]{1,3})\s*\})"
)


def plain_number(text: str) -> Fraction | None:
    """The exact value of `text`, or None if it is no plainly written number of at most 400 characters."""
    text = text.strip()
    if not text or len(text) > MAX_CHARACTERS:
        return None
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        digits = re.sub(r"[^0-9]", "", decimal[2]) or "0"
        if not decimal[2] and decimal[3] in (None, "."):
            return None
        return _signed(decimal[1], Fraction(digits + (decimal[3] or "").rstrip(".")))
    fraction = _FRACTION.fullmatch(text) or _SLASHED.fullmatch(text)
    if fraction:
        top, bottom = int(fraction[3]), int(fraction[4])
        if bottom == 0 or (fraction[2] and (top < 0 or bottom < 0)):
            return None
        return _signed(fraction[1], Fraction(fraction[2] or 0) + Fraction(top, bottom))
    repeating = _REPEATING.fullmatch(text)
    if repeating:
        whole, start, period = Fraction(repeating[2] or "0"), repeating[3], repeating[4]
        tail = Fraction(int(start or "0")) + Fraction(int(period), 10 ** len(period) - 1)
        return _signed(repeating[1], whole + tail / 10 ** len(start))
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific:
        return Fraction(scientific[1]) * Fraction(10) ** int(scientific[2] or scientific[3])
    return None


def plain_values(text: str) -> set[Fraction]:
    """The values that `text` may stand for: one number; for a percentage also its hundredth; else none."""
    if len(text) > MAX_CHARACTERS:
        return set()
    percent = _PERCENT.fullmatch(text.strip())
    value = plain_number(percent[1] if percent else text)
    if value is None:
        return set()
    return {value, value / 100} if percent else {value}


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value
