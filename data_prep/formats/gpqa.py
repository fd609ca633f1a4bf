"""GPQA: a question, one right and three wrong answers, which become lettered choices.

The order of the choices follows from the question's text alone, so that the same question always has the same letters.
The metadata hold what the reward `gpqa` reads: `choices`, `valid_letters`, `correct_letter`.
"""

from __future__ import annotations

import hashlib

from data_prep.formats.common import label, messages, require, rest
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.schema import Record

_WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
COLUMNS = ("Question", "Correct Answer", *_WRONG)
_KEPT = ("Record ID", "Subdomain", "High-level domain")
_TASK = "Answer with the letter of the right choice, in the form 'Answer: X'."


def convert(row: Row, options: ColumnOptions) -> Record:
    """One question as a record whose label is the right letter.

    Raises:
        ValueError: the row does not follow the layout, or two choices are the same.
    """
    require(row, *COLUMNS)
    question, *answers = (label(row[column]).strip() for column in COLUMNS)
    if len(set(answers)) < len(answers):
        raise ValueError("two of the choices are the same")
    choices = sorted(answers, key=lambda answer: hashlib.sha256(f"{question}\0{answer}".encode()).digest())
    letters = "ABCD"[: len(choices)]
    correct = letters[choices.index(answers[0])]
    listing = "\n".join(f"{letter}) {choice}" for letter, choice in zip(letters, choices, strict=True))
    metadata = {key: value for key, value in rest(row).items() if key in _KEPT}
    metadata |= {"choices": choices, "valid_letters": list(letters), "correct_letter": correct}
    return Record(messages(f"{question}\n\n{listing}\n\n{_TASK}"), correct, metadata)
