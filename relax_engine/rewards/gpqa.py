"""`--rm-type gpqa`: the letter that the response chooses, or the text of the right choice.

The row's metadata says what the choices are: `choices` (a list, or a dictionary by letter), `valid_letters`,
`correct_letter`, `correct_answer`. The label is the right letter, the number of the right choice from 0, or its text.
"""

from __future__ import annotations

import re
import string
from typing import Any

from relax_engine.rewards.answers.letters import choice_letter
from relax_engine.rewards.boxed import last_boxed
from relax_engine.rewards.extract import after_thoughts, empty_label
from relax_engine.types import Sample

DEFAULT_LETTERS = string.ascii_uppercase[:10]

_LETTER = r"((?-i:[A-Z])\b|[a-z](?=[.)\]*\s]*(?:$|\n)))"
_PATTERNS = (
    re.compile(rf"\b(?:answer|option|choice)\s*(?:is|:)?[\s:*$(\[\"']*{_LETTER}", re.IGNORECASE),
    re.compile(r"\b(?-i:([A-Z]))\W{0,3}\s*is\s*(?:the)?\s*correct", re.IGNORECASE),
)
_STANDING_ALONE = re.compile(r"\b([A-Z])\b")
check_label = empty_label


def gpqa_reward(args: Any, sample: Sample) -> float:
    """1.0 for the right letter, or, in a response that names no letter, for the text of the right choice; else 0.0."""
    label = str(sample.label if sample.label is not None else "").strip()
    choices = sample.metadata.get("choices") or []
    choices = [str(choice) for choice in (choices.values() if isinstance(choices, dict) else choices)]
    letters = [str(letter).upper() for letter in sample.metadata.get("valid_letters") or ()]
    letters = letters or list(string.ascii_uppercase[: len(choices)] or DEFAULT_LETTERS)
    right = _right_letter(sample.metadata.get("correct_letter"), label, letters, choices)
    chosen = chosen_letter(sample.response, letters)
    if chosen is not None and right is not None:
        return float(chosen == right)
    texts = [str(sample.metadata.get(key) or "") for key in ("correct_answer", "answer_text")]
    if right in letters[: len(choices)]:
        texts.append(choices[letters.index(right)])
    if len(label) > 1:
        texts.append(label)
    said = f" {_plain(after_thoughts(sample.response))} "
    return float(any(f" {text} " in said for text in map(_plain, texts) if text))


def chosen_letter(response: str, letters: list[str] | str) -> str | None:
    """The valid letter named as the answer after the thoughts; else the last that stands alone; else None.

    A boxed letter comes first, then `answer is B` and its like, then `B is correct`; of several the last.
    """
    text = after_thoughts(response)
    boxed = choice_letter(last_boxed(text) or "")
    if boxed is not None and boxed in letters:
        return boxed
    for pattern in _PATTERNS:
        named = [letter.upper() for letter in pattern.findall(text) if letter.upper() in letters]
        if named:
            return named[-1]
    alone = [letter for letter in _STANDING_ALONE.findall(text) if letter in letters]
    return alone[-1] if alone else None


def _right_letter(given: Any, label: str, letters: list[str], choices: list[str]) -> str | None:
    if isinstance(given, str) and given.strip():
        return given.strip().upper()
    if len(label) == 1 and label.upper() in letters:
        return label.upper()
    if label.isdecimal() and int(label) < len(letters):
        return letters[int(label)]
    plain = [_plain(choice) for choice in choices]
    return letters[plain.index(_plain(label))] if label and _plain(label) in plain[: len(letters)] else None


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
