r"""`--rm-type math`: is the boxed answer the label?

What lives here: the order of comparisons, cheap ones first. What does not: each of them (`latex`, `plain_number`,
`words`, `letters`, `symbolic`) and finding the box (`boxed`).
"""

from __future__ import annotations

import functools
from typing import Any

from relax_engine.rewards.answers import symbolic
from relax_engine.rewards.answers.latex import canonical, plain_latex
from relax_engine.rewards.answers.letters import choice_letter
from relax_engine.rewards.answers.plain_number import plain_values
from relax_engine.rewards.answers.words import as_words, unwrapped
from relax_engine.rewards.boxed import last_boxed
from relax_engine.types import Sample

ROUNDING = 6
MAX_CHARACTERS = 10_000
warm_up = symbolic.warm_up


def math_reward(args: Any, sample: Sample) -> float:
    r"""1.0 if the content of the last `\boxed{...}` of the response equals the label, else 0.0.

    A response without a box that closes scores 0.0, and so does any response to an empty label. The label may be boxed
    or in `$...$` itself.
    """
    boxed = last_boxed(sample.response)
    return 0.0 if boxed is None else float(same_answer(sample.label or "", boxed))


def check_label(label: str) -> str | None:
    """Why no answer could equal `label`, or None if one could."""
    if not label.strip():
        return "the label is empty"
    bare = bare_answer(label)
    if not canonical(bare).strip("?!.,;:") or bare.count("{") != bare.count("}"):
        return f"the label {label!r} is no answer: it is punctuation alone, or its braces do not match"
    return None


def same_answer(label: str, answer: str) -> bool:
    r"""Whether `answer` (the inside of a box) is the label. Never raises, and takes at most about ten seconds.

    In this order: the same text in canonical spelling; choice letters; words; plainly written numbers, which agree to
    six digits after the point; computer algebra, unless it could explode. Nothing equals an empty text.
    """
    if len(answer) > MAX_CHARACTERS:
        return bool(label) and label == answer
    label, answer = bare_answer(label), bare_answer(answer)
    spelled, written = canonical(label), canonical(answer)
    if not spelled or not written:
        return False
    if spelled == written or (unwrapped(label) == unwrapped(answer) != ""):
        return True
    if _is_choice(label):
        return choice_letter(answer) == choice_letter(label)
    label_words = as_words(label)
    if label_words is not None:
        return as_words(answer) == label_words
    expected, found = (
        plain_values(text) or plain_values(short) for text, short in ((label, spelled), (answer, written))
    )
    if expected and found:
        return any(round(a, ROUNDING) == round(b, ROUNDING) for a in expected for b in found)
    if symbolic.explodes(label) or symbolic.explodes(answer):
        return False
    return _same_by_algebra(label, answer)


@functools.lru_cache(maxsize=4096)
def _same_by_algebra(label: str, answer: str) -> bool:
    """Kept for the other samples of the group, which often give the same answer."""
    return symbolic.equal(_parsed_label(label), symbolic.parse(f"\\boxed{{{answer}}}"))


@functools.lru_cache(maxsize=1024)
def _parsed_label(label: str) -> list[Any]:
    return symbolic.parse(f"${label}$")


def bare_answer(text: str) -> str:
    """`text` without the box or the dollar signs around all of it, its Unicode mathematics as LaTeX."""
    text = text.strip()
    boxed = last_boxed(text)
    text = text if boxed is None else boxed.strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$") and not text.endswith("\\$"):
        text = text.strip("$").strip()
    return plain_latex(text)


def _is_choice(label: str) -> bool:
    letter = choice_letter(label, with_text=False)
    return letter is not None and letter in label  # a lower-case letter is a variable
