"""`--rm-type mopd`: the reward that belongs to the row's `metadata["data_source"]`, for mixtures of data sets."""

from __future__ import annotations

import json
import re
from typing import Any

from relax_engine.rewards.dapo import dapo_reward, normalize_answer
from relax_engine.rewards.extract import empty_label
from relax_engine.rewards.math import math_reward
from relax_engine.rewards.openr1mm import openr1mm_reward
from relax_engine.types import Sample

TAIL_CHARACTERS = 300
MOST_MARKS = 5

_ENDS = re.compile(r"</s>|<\|endoftext\|>|<\|im_end\|>")
_ANSWER_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_MARKED = re.compile(r"####[^\S\n]*\n?[^\S\n]*(-?\$?-?[\d,]+(?:\.\d+)?)")
_LEADING_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
check_label = empty_label


def mopd_reward(args: Any, sample: Sample) -> float:
    """One number by `data_source`, a part of whose name decides.

    `geo3k`, `geometry3k`: `math`, 0 or 1. `openr1mm`, `multimodal-open-r1`: `openr1mm`, 0 or 1. `dapo`: the score of
    `dapo`, 1 or -1. All others: `word_problem`, 1 or -1.
    """
    source = str(sample.metadata.get("data_source") or "").lower()
    if "geo3k" in source or "geometry3k" in source:
        return math_reward(args, sample)
    if "openr1mm" in source or "multimodal-open-r1" in source:
        return openr1mm_reward(args, sample)
    if "dapo" in source:
        return dapo_reward(args, sample)["score"]
    return word_problem(sample.response, _ground_truth(sample.label or ""))


def word_problem(response: str, label: str) -> float:
    """1.0 if the last `Answer: ...` (or else `#### ...`) among the last 300 characters is the label, else -1.0.

    Equal as text after Minerva's normalisation, or as a number, also one followed by a unit. What comes after an end
    token does not count, and more than five `####` are an attempt to have many answers.
    """
    end = _ENDS.search(response)
    response = response[: end.start()] if end and end.start() > 0 else response
    if response.count("####") > MOST_MARKS:
        return -1.0
    tail = response[-TAIL_CHARACTERS:]
    found = _ANSWER_LINE.findall(tail) or _MARKED.findall(tail)
    prediction, expected = normalize_answer(found[-1].strip() if found else ""), normalize_answer(label)
    if not prediction or not expected:
        return -1.0
    leading = _LEADING_NUMBER.match(prediction.strip())
    value, number = _number(expected), _number(prediction)
    leading_number = _number(leading[0]) if leading else None
    right = prediction == expected or (value is not None and value in (number, leading_number))
    return 1.0 if right else -1.0


def _ground_truth(label: str) -> str:
    if label.lstrip().startswith("{"):
        try:
            record = json.loads(label)
        except ValueError:
            return label
        return str(record.get("ground_truth") or record.get("answer") or "") if isinstance(record, dict) else label
    return label


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
