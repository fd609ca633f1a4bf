"""`--rm-type math`: is the response's final answer mathematically equal to the label?

What lives here: extraction and comparison through math-verify (Hugging Face, 0.9.0), which compares
expressions, not strings. What does not: partial credit and format rewards.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

import math_verify
from math_verify import ExprExtractionConfig, LatexExtractionConfig

from relax_engine.rewards.boxed import last_boxed
from relax_engine.types import Sample

COMPARISON_SECONDS = 5
ANSWER_KINDS = (LatexExtractionConfig(), ExprExtractionConfig())

logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def math_reward(args: Any, sample: Sample) -> float:
    """1.0 if the last `\\boxed{...}` of the response, or without one its last expression, equals the label.

    Raises:
        ValueError: the label is missing or is no mathematical expression.
    """
    if not sample.label:
        raise ValueError("the label is empty; the math reward needs an answer to compare with")
    gold = _parse_label(sample.label)
    if not gold:
        raise ValueError(f"the label {sample.label!r} is not a mathematical expression")
    return float(_equal(gold, parse_answer(sample.response)))


def check_label(label: str) -> str | None:
    """Why `label` cannot be compared with, or None if it can; for dataset validation."""
    if not label.strip():
        return "the label is empty"
    return None if _parse_label(label) else f"the label {label!r} is not a mathematical expression"


def warm_up() -> None:
    """Fill the parser's caches, which takes longer than scoring many answers."""
    _equal(_parse("$\\frac{x^2+1}{2}$"), _parse("\\boxed{0.5(x^2+1)}"))


def parse_answer(text: str) -> list[Any]:
    """The expressions in the last `\\boxed{...}` of `text`, or in all of `text`; empty if there are none."""
    boxed = last_boxed(text)
    return _parse(text if boxed is None else f"\\boxed{{{boxed}}}")


def _parse_label(label: str) -> list[Any]:
    if last_boxed(label) is not None or "$" in label:
        return _parse(label)
    return _parse(f"${label}$") or _parse(label)


def _parse(text: str) -> list[Any]:
    parsed: list[Any] = math_verify.parse(
        text, extraction_config=ANSWER_KINDS, parsing_timeout=_seconds(), raise_on_error=False
    )
    return parsed


def _equal(gold: list[Any], answer: list[Any]) -> bool:
    return bool(answer) and bool(math_verify.verify(gold, answer, timeout_seconds=_seconds(), raise_on_error=False))


def _seconds() -> int | None:
    """math-verify's own time limit, which is an alarm signal; None where signals cannot be used or one is pending."""
    free = signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    return COMPARISON_SECONDS if free and threading.current_thread() is threading.main_thread() else None
