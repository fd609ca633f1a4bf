r"""`--rm-type dapo` and `dapo_strict_box`: the answer on the last `Answer:` line, or the box, compared as text.

The rule of the DAPO recipe (arXiv 2503.14476): the prompt asks for a last line `Answer: ...`. Answers are
normalised as in the evaluation of Minerva (arXiv 2206.14858, appendix D.1) and compared literally.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from relax_engine.rewards.boxed import last_boxed
from relax_engine.rewards.extract import empty_label
from relax_engine.types import Sample

TAIL_CHARACTERS = 300
BOX_TAIL_CHARACTERS = 100
NO_ANSWER = "[INVALID]"

_ANSWER_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_SPELLINGS = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_WORDS = """
square ways integers dollars mph inches hours km units points feet minutes digits cents degrees cm gm pounds meters
meals edges students childrentickets multiples ft
"""
_MARKUP = (
    *("\\text{s}", "\\text{.}", "\\text{^2}", "\\text{^3}", "\\text{}", "\\mathrm{th}"),
    *("^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_WRAPPERS = re.compile(r"\\(?:text|textbf|overline|boxed)\{(.*?)\}")
_INLINE_MATH = re.compile(r"\$(.*?)\$")
_BARE_FRACTION = re.compile(r"frac([^{])(.)")
_BARE_ROOT = re.compile(r"sqrt([^{])")
_THOUSANDS = re.compile(r"[\d,]+")
check_label = empty_label


class DapoReward(TypedDict):
    """`score` is 1.0 or -1.0, `acc` whether the answer is right, `pred` the answer compared; None for no box."""

    score: float
    acc: bool
    pred: str | None


def dapo_reward(args: Any, sample: Sample) -> DapoReward:
    """Score the last `Answer: ...` among the last 300 characters; run it with `--reward-key score`.

    An empty answer is wrong, whatever the label is.
    """
    found = _ANSWER_LINE.findall(sample.response[-TAIL_CHARACTERS:])
    prediction = normalize_answer(found[-1] if found else NO_ANSWER)
    return _scored(bool(prediction) and prediction == _normalize_label(sample.label or ""), prediction)


def dapo_strict_box_reward(args: Any, sample: Sample) -> DapoReward:
    r"""Score the last `\boxed{...}` among the last 100 characters, which must be the label to the letter."""
    prediction = last_boxed(sample.response[-BOX_TAIL_CHARACTERS:], ("\\boxed",))
    return _scored(bool(prediction) and prediction == (sample.label or ""), prediction)


def _scored(correct: bool, prediction: str | None) -> DapoReward:
    return {"score": 1.0 if correct else -1.0, "acc": correct, "pred": prediction}


def normalize_answer(answer: str) -> str:
    """The answer without units, markup and spaces, after its last `=`; `1,234` becomes `1234`."""
    answer = answer.split("=")[-1]
    for spelling, replacement in _SPELLINGS:
        answer = answer.replace(spelling, replacement)
    for text in (*_WORDS.split(), *_MARKUP):
        answer = answer.replace(text, "")
    math = _INLINE_MATH.search(answer)
    if math:
        answer = math.group(1)
    boxed = last_boxed(answer) if "\\boxed" in answer else None
    if boxed is not None:
        answer = boxed
    answer = _WRAPPERS.sub(r"\1", answer)
    answer = _BARE_FRACTION.sub(r"frac{\1}{\2}", answer)
    answer = _BARE_ROOT.sub(r"sqrt{\1}", answer)
    answer = answer.replace("$", "").strip()
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer


def _normalize_label(label: str) -> str:
    """As an answer; a number that is whole is written as an integer (`42.0` is `42`)."""
    normal = normalize_answer(label)
    try:
        number = float(normal)
    except ValueError:
        return normal
    return str(int(number)) if number.is_integer() else normal
