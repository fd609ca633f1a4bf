r"""Finding the answer in a response: after the thoughts, in `<answer>` tags, among several right ones.

What lives here: extraction that several rewards share. What does not: `\boxed{...}` (`boxed`) and comparing.
"""

from __future__ import annotations

import json
from typing import Any

from relax_engine.types import Sample, SampleStatus

THOUGHTS_END = "</think>"


def after_thoughts(response: str) -> str:
    """What follows the last `</think>`; the whole response without one."""
    return response.rpartition(THOUGHTS_END)[2]


def thoughts_unfinished(sample: Sample) -> bool:
    """Whether the response ends within its thoughts: `<think>` without `</think>`, or cut off before any `</think>`."""
    if THOUGHTS_END in sample.response:
        return False
    return "<think>" in sample.response or sample.status is SampleStatus.TRUNCATED


def last_answer(response: str) -> str | None:
    """The content of the last `<answer>...</answer>`, stripped; None without one. Of nested ones the inner."""
    before, closed, _ = response.rpartition("</answer>")
    _, opened, content = before.rpartition("<answer>")
    return content.strip() if closed and opened else None


def right_answers(sample: Sample) -> list[str]:
    """Every text that counts as right, none of them empty.

    These are `metadata["answers"]`, or else the label: a JSON list, a JSON object with a key `target`, or one text.
    """
    answers: Any = sample.metadata.get("answers")
    if answers is None:
        answers = sample.label or ""
        if answers.lstrip()[:1] in ("[", "{"):
            try:
                answers = json.loads(answers)
            except ValueError:
                answers = [answers]
        if isinstance(answers, dict):
            answers = answers.get("target", [])
    if not isinstance(answers, list | tuple):
        answers = [answers]
    return [text for answer in answers if (text := str(answer).strip())]


def empty_label(label: str) -> str | None:
    """`check_label` of rewards that can compare with any text."""
    return None if label.strip() else "the label is empty"
