r"""Equality of two answers by computer algebra (math-verify, Hugging Face), within limits of time and size.

What lives here: parsing, comparing, and refusing to compute what would not end. What does not: which part of a response
is its answer, and the cheap comparisons that come first (`math`).
"""

from __future__ import annotations

import logging
import math
import re
from typing import Any

import math_verify
from math_verify import ExprExtractionConfig, LatexExtractionConfig

from relax_engine.rewards.answers.deadline import within

COMPARISON_SECONDS = 5.0
MAX_CHARACTERS = 1000
MAX_EXPONENT = 5000
MAX_FACTORIAL = 2000
ANSWER_KINDS = (LatexExtractionConfig(), ExprExtractionConfig())

WARM_UP = (
    ("\\frac{x^2+1}{2}", "0.5(x^2+1)"),
    ("(1,\\frac{2}{3}]", "(1, 0.6667]"),
    ("y=2x+\\sqrt[3]{5}", "2x+\\sqrt{5}"),
    ("-2 \\le x < 7", "[-2,7)"),
)

_DIGITS = re.compile(r"\d{300,}")
_FACTORIAL = re.compile(r"(\d+)\s*!")
_CHOOSE = re.compile(r"binom\{?(?:\d{7}|[^{}]*\^)")

logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def warm_up() -> None:
    """Fill the parser's caches, which takes longer than comparing many answers: a form of each kind."""
    for label, answer in WARM_UP:
        equal(parse(f"${label}$"), parse(f"\\boxed{{{answer}}}"))


def parse(text: str) -> list[Any]:
    """The answer that math-verify finds in `text`, as expression and as string; empty without one. Never raises."""
    found = within(
        COMPARISON_SECONDS,
        lambda: math_verify.parse(text, extraction_config=ANSWER_KINDS, parsing_timeout=None, raise_on_error=False),
    )
    return found or []


def equal(gold: list[Any], answer: list[Any]) -> bool:
    """Whether two results of `parse` are the same answer. Never raises; False if it takes too long to tell."""
    verdict = within(
        COMPARISON_SECONDS,
        lambda: math_verify.verify(gold, answer, timeout_seconds=None, raise_on_error=False),
    )
    return bool(verdict)


def explodes(text: str) -> bool:
    """Whether evaluating `text` could take unbounded time or memory; such answers are compared as text alone.

    True for more than a thousand characters, numbers of 300 digits, exponents past 5000 or stacked numeric ones,
    factorials past 2000 or of powers and factorials, binomials of seven digits.
    """
    if len(text) > MAX_CHARACTERS or _DIGITS.search(text):
        return True
    text = text.replace("**", "^").replace(" ", "")
    if any(int(number) > MAX_FACTORIAL for number in _FACTORIAL.findall(text)):
        return True
    if text.count("!") > 1 and re.search(r"[)}!]!", text):
        return True
    if re.search(r"[)}]!", text) and "^" in text:
        return True
    return bool(_CHOOSE.search(text)) or any(
        _log10(exponent) > math.log10(MAX_EXPONENT) for exponent in _exponents(text)
    )


def _exponents(text: str) -> list[str]:
    """What follows each `^`: a braced or bracketed group, or the rest up to the next operator."""
    found = []
    for position in (index for index, character in enumerate(text) if character == "^"):
        rest = text[position + 1 :]
        found.append(_group(rest) if rest[:1] in ("{", "(") else re.split(r"[+\-*/=,)}\\ ]", rest, maxsplit=1)[0])
    return found


def _group(text: str) -> str:
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if depth == 0:
            return text[1:index]
    return text[1:]


def _log10(exponent: str) -> float:
    """A bound on the decimal logarithm of an exponent's numeric part; infinite where numbers are stacked."""
    if not re.search(r"\d", exponent):
        return -math.inf
    bases = re.findall(r"(\d+)[})]*\^", exponent)
    if bases:
        if exponent.count("^") > 1:
            return math.inf
        power = re.search(r"\^[{(]*(\d+)", exponent)
        return int(power[1]) * math.log10(max(int(bases[0]), 1)) if power else math.inf
    return max(math.log10(max(int(number), 1)) for number in re.findall(r"\d+", exponent))
