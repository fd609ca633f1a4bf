r"""`--rm-type math`: is the boxed answer mathematically equal to the label?

What lives here: extraction of `\boxed{...}` and comparison through math-verify (Hugging Face), which
compares expressions, not strings: `\frac{2}{4}` equals `0.5`. What does not:
partial credit and format rewards.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import math_verify
from math_verify import ExprExtractionConfig, LatexExtractionConfig

from relax_engine.rewards.boxed import last_boxed
from relax_engine.types import Sample

COMPARISON_SECONDS = 5
ANSWER_KINDS = (LatexExtractionConfig(), ExprExtractionConfig())

logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def math_reward(args: Any, sample: Sample) -> float:
    r"""1.0 if the content of the last `\boxed{...}` of the response equals the label, else 0.0.

    A response without a box that closes, or with a box that is no expression, scores 0.0. The label
    may be boxed or in `$...$` itself.

    Raises:
        ValueError: the label is missing or is no mathematical expression.
    """
    gold = _parse_label(sample.label or "")
    if not gold:
        raise ValueError(_unusable(sample.label or ""))
    boxed = last_boxed(sample.response)
    return 0.0 if boxed is None else float(equal(gold, parse(f"\\boxed{{{boxed}}}")))


def check_label(label: str) -> str | None:
    """Why `label` cannot be compared with, or None if it can."""
    return None if _parse_label(label) else _unusable(label)


def warm_up() -> None:
    """Fill the parser's caches, which takes longer than scoring many answers."""
    equal(parse("$\\frac{x^2+1}{2}$"), parse("\\boxed{0.5(x^2+1)}"))


def parse(text: str) -> list[Any]:
    """The answer that math-verify finds in `text`, as expression and as string; empty without one. Never raises."""
    with _time_limit() as seconds:
        parsed: list[Any] = math_verify.parse(
            text, extraction_config=ANSWER_KINDS, parsing_timeout=seconds, raise_on_error=False
        )
    return parsed


def equal(gold: list[Any], answer: list[Any]) -> bool:
    """Whether two results of `parse` are the same answer. Never raises; False if it takes too long to tell."""
    with _time_limit() as seconds:
        return bool(math_verify.verify(gold, answer, timeout_seconds=seconds, raise_on_error=False))


@contextlib.contextmanager
def _time_limit() -> Iterator[int | None]:
    """math-verify's own limit in seconds, which is an alarm signal: None outside the main thread.

    It cancels whatever alarm was set before; this sets it again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    remaining, interval = signal.getitimer(signal.ITIMER_REAL)
    started = time.monotonic()
    try:
        yield COMPARISON_SECONDS
    finally:
        if remaining:
            elapsed = time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, max(remaining - elapsed, 1e-3), interval)


def _unusable(label: str) -> str:
    return f"the label {label!r} is not a mathematical expression" if label.strip() else "the label is empty"


def _parse_label(label: str) -> list[Any]:
    parsed = parse(label if last_boxed(label) is not None or "$" in label else f"${label}$")
    return parsed if any(not isinstance(form, str) for form in parsed) else []
