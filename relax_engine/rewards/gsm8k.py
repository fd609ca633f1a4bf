"""`--rm-type gsm8k`: the number after `####` (or the last number) is the label.

The label may be a bare number, or a whole reference solution, whose last `#### number` counts.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from relax_engine.rewards.extract import empty_label
from relax_engine.types import Sample

TAIL_CHARACTERS = 300

_MARKED = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.,]+")
check_label = empty_label


def gsm8k_reward(args: Any, sample: Sample, *, method: Literal["strict", "flexible"] = "strict") -> float:
    """1.0 if the answer is the label as text, thousands separators aside; else 0.0.

    `strict` takes the last `#### number`, `flexible` the last number, each among the last 300 characters.

    Raises:
        ValueError: another method.
    """
    answer = find_answer(sample.response, method)
    label = find_answer(sample.label or "", "strict") or (sample.label or "").strip().replace(",", "")
    return float(bool(label) and answer == label)


def find_answer(text: str, method: str) -> str | None:
    """The number that `method` takes from `text`, without separators and closing full stop; None without one."""
    text = text[-TAIL_CHARACTERS:]
    if method == "strict":
        numbers = _MARKED.findall(text)
    elif method == "flexible":
        numbers = [number for number in _NUMBER.findall(text) if number not in ("", ".")]
    else:
        raise ValueError(f"gsm8k method {method!r}: write 'strict' or 'flexible'")
    return numbers[-1].replace(",", "").replace("$", "") if numbers else None
