"""`--rm-type openr1mm_benchmark`: the final answer against a record of MathVista or MMMU.

The label is a JSON object: `answer` (a text, a number or a list of accepted ones), and optionally `choices` with
`correct_index`, `precision` (digits after the point) and `answer_type` (`list`).
"""

from __future__ import annotations

import ast
import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from relax_engine.rewards.extract import THOUGHTS_END
from relax_engine.rewards.openr1mm import END_OF_TURN
from relax_engine.types import Sample

_LAST_ANSWER = re.compile(r"<answer>(.*?)</answer>\s*$", re.DOTALL)
_LETTER = re.compile(r"(?:[Tt]he answer is\s+|[Oo]ption\s+)?\(?([A-Z])\)?\.?")
_LETTER_AND_TEXT = re.compile(r"\(?([A-Z])\)?[.:：、)]\s*(.+)", re.DOTALL)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def openr1mm_benchmark_reward(args: Any, sample: Sample) -> float:
    """1.0 if the final answer is an accepted one: the choice by letter, text or both, a number, a list; else 0.0.

    Raises:
        ValueError: the label is no JSON object with an answer.
    """
    problem = check_label(sample.label or "")
    if problem:
        raise ValueError(problem)
    record = json.loads(sample.label or "")
    answer = _final_answer(sample.response)
    if not answer:
        return 0.0
    if record.get("choices"):
        return float(_chosen(answer, record["choices"], int(record["correct_index"])))
    accepted = record["answer"] if isinstance(record["answer"], list) else [record["answer"]]
    return float(any(_accepted(answer, str(expected), record) for expected in accepted))


def check_label(label: str) -> str | None:
    """Why `label` is no record to compare with, or None if it is one."""
    try:
        record = json.loads(label)
    except ValueError as error:
        return f"the label is no JSON object: {error}"
    if not isinstance(record, dict) or record.get("answer") in (None, "", []):
        return "the label is no JSON object with an `answer`"
    if record.get("choices") and not 0 <= int(record.get("correct_index", -1)) < len(record["choices"]):
        return "the label has `choices`, but its `correct_index` is none of them"
    return None


def _final_answer(response: str) -> str | None:
    text = response.replace(END_OF_TURN, "").strip()
    if text.count("<answer>") == text.count("</answer>") == 1:
        answer = _LAST_ANSWER.search(text)
        return answer[1].strip() if answer else None
    text = text.rpartition(THOUGHTS_END)[2].strip()
    return None if any(tag in text for tag in ("<answer>", "</answer>", "<think>")) else text


def _chosen(answer: str, choices: list[str], right: int) -> bool:
    letter = _LETTER.fullmatch(answer)
    if letter:
        return ord(letter[1]) - ord("A") == right
    named = _LETTER_AND_TEXT.fullmatch(answer)
    if named:
        return ord(named[1]) - ord("A") == right and _plain(named[2]) == _plain(choices[right])
    return _plain(answer) == _plain(choices[right])


def _accepted(answer: str, expected: str, record: dict[str, Any]) -> bool:
    if _plain(answer) == _plain(expected):
        return True
    found, wanted = _number(answer), _number(expected)
    if found is not None and wanted is not None:
        digits = record.get("precision")
        try:
            return found == wanted if digits is None else round(found, int(digits)) == round(wanted, int(digits))
        except InvalidOperation:  # too large to have that many digits after the point
            return False
    if record.get("answer_type") == "list":
        try:
            return bool(ast.literal_eval(answer) == ast.literal_eval(expected))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return False
    return False


def _plain(text: Any) -> str:
    return " ".join(str(text).casefold().split())


def _number(text: str) -> Decimal | None:
    """A number; commas only where thousands end."""
    text = text.strip().strip("$").replace("−", "-")
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    return Decimal(text) if _NUMBER.fullmatch(text) else None
