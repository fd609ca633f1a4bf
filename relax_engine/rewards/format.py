"""`--rm-type format`: does the response have the form that the prompt asked for? Says nothing about the answer."""

from __future__ import annotations

import re
from typing import Any

from relax_engine.rewards.boxed import last_boxed
from relax_engine.types import Sample

FORMS = {
    "think": re.compile(r"(?:<think>)?(?P<part>.+?)</think>(?P<rest>.+)", re.DOTALL),
    "think_answer": re.compile(
        r"(?:<think>)?(?P<part>.+?)</think>\s*<answer>(?P<rest>.+?)</answer>\s*(?:<\|im_end\|>)?", re.DOTALL
    ),
    "answer": re.compile(r".*<answer>(?P<part>.+?)</answer>(?P<rest>)", re.DOTALL),
}
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def format_reward(
    args: Any, sample: Sample, *, form: str = "think_answer", pattern: str | None = None, miss: float = 0.0
) -> float:
    r"""1.0 if the whole response has the form, else `miss`.

    `think`: thoughts, closed once by `</think>`, and something after them. `think_answer`: thoughts, then one
    `<answer>...</answer>` and nothing else. `answer`: one `<answer>...</answer>` at the end. `boxed`: a `\boxed{...}`
    after the thoughts. `<think>` may have been part of the prompt; no tag may occur twice, and no part be empty.
    `pattern` is a regular expression of your own for the whole response instead.

    Raises:
        ValueError: an unknown form, or a pattern that does not compile.
    """
    if pattern is not None:
        try:
            return 1.0 if re.fullmatch(pattern, sample.response, re.DOTALL) else miss
        except re.error as error:
            raise ValueError(f"format pattern {pattern!r}: {error}") from error
    if form == "boxed":
        return 1.0 if last_boxed(sample.response.rpartition("</think>")[2]) else miss
    if form not in FORMS:
        raise ValueError(f"format form {form!r}: write one of {', '.join((*FORMS, 'boxed'))}")
    if any(sample.response.count(tag) > 1 for tag in TAGS):
        return miss
    match = FORMS[form].fullmatch(sample.response.strip())
    filled = match is not None and match["part"].strip() and (form == "answer" or match["rest"].strip())
    return 1.0 if filled else miss
