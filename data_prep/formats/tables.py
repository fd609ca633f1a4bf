r"""Tables of questions and answers: GSM8K's `#### `, MATH's `\boxed{}`, DAPO's integers, and plain columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from data_prep.formats import verl
from data_prep.formats.common import label, messages, require, rest, structured_label
from data_prep.formats.media import MEDIA_COLUMNS, media_of
from data_prep.formats.options import ColumnOptions
from data_prep.json_rows import Row
from data_prep.schema import Record

_QUESTIONS = ("question", "problem", "query", "instruction", "input", "prompt", "text")
_ANSWERS = ("answer", "label", "ground_truth", "solution", "response", "output", "target")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def gsm8k(row: Row, options: ColumnOptions) -> Record:
    """GSM8K: the label is what follows the last `####`, without thousands separators.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    require(row, "question", "answer")
    solution = label(row["answer"])
    _, mark, final = solution.rpartition("####")
    final = final.strip().replace(",", "").removeprefix("$")
    if not mark or not _NUMBER.fullmatch(final):
        raise ValueError(f"the answer ends with {solution[-40:]!r}, expected '#### ' and a number")
    metadata = {"data_source": "openai/gsm8k", "solution": solution} | rest(row, "question", "answer")
    return Record(messages(row["question"]), final, metadata)


def math(row: Row, options: ColumnOptions) -> Record:
    r"""MATH: the label is the column `answer` if there is one, else the last `\boxed{}` of the solution.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    from relax_engine.rewards.boxed import last_boxed

    require(row, "problem", "solution")
    solution = label(row["solution"])
    answer = row.get("answer") or last_boxed(solution)
    if answer is None:
        raise ValueError("the solution has no \\boxed{} that closes, and there is no column 'answer'")
    metadata = {"solution": solution} | rest(row, "problem", "solution", "answer")
    return Record(messages(row["problem"]), label(answer), metadata)


def dapo(row: Row, options: ColumnOptions) -> Record:
    """DAPO's mathematics: verl's layout, with a label that is a number; `34.0` becomes `34`.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    record = verl.convert(row, options)
    if not _NUMBER.fullmatch(record.label.strip()):
        raise ValueError(f"the label {record.label!r:.60} is not a number, which the reward `dapo` compares")
    return replace(record, label=re.sub(r"\.0+$", "", record.label.strip()))


def question_answer(row: Row, options: ColumnOptions) -> Record:
    """Any table: the columns named in `options`, else the first of the usual names. Other columns are metadata.

    Raises:
        ValueError: the row does not follow the layout, with the reason.
    """
    prompt, answer = _named(row, options.prompt, _QUESTIONS), _named(row, options.label, _ANSWERS)
    value: Any = row[answer]
    if isinstance(value, int | float) and not isinstance(value, bool) and options.label:
        value = repr(value)  # whoever names a column of numbers as the label means them
    metadata = rest(row, prompt, answer, *MEDIA_COLUMNS)
    return Record(messages(row[prompt]), structured_label(value), metadata, media_of(row))


def _named(row: Mapping[str, Any], name: str | None, usual: tuple[str, ...]) -> str:
    found = name or next((column for column in usual if row.get(column) is not None), None)
    if found is None:
        raise ValueError(
            f"none of the columns {', '.join(usual)} is filled; name one by --prompt-column, --label-column"
        )
    require(row, found)
    return found
