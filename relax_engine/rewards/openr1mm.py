"""`--rm-type openr1mm`: the final answer of a response with thoughts, as an expression, a text or a choice.

What lives here: the accuracy reward, and `openr1mm_accuracy_format`, which adds a point for the format. What does not:
the comparison with a benchmark's record (`openr1mm_benchmark`).
"""

from __future__ import annotations

import re
from typing import Any

from relax_engine.rewards.answers import symbolic
from relax_engine.rewards.extract import THOUGHTS_END, empty_label
from relax_engine.types import Sample

END_OF_TURN = "<|im_end|>"
TAGS = ("<think>", THOUGHTS_END, "<answer>", "</answer>")

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_FORMAT = re.compile(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", re.DOTALL)
_MARKER = re.compile(r"(?:^|\s)(?:\([A-Z]\)(?=\s|$)|[A-Z][.:)](?=\s|$)|(?i:option|choice)\s+[A-Z]\b)")
_BARE_CHOICE = re.compile(r"\(?([A-Z])\)?")
_CHOICE = re.compile(r"(?:[Tt]he answer is\s+)?(?:(?i:option|choice)\s+)?([A-Z])(?:[.:)]\s+(.+)|\.?)", re.DOTALL)
check_label = empty_label
warm_up = symbolic.warm_up


def openr1mm_reward(args: Any, sample: Sample) -> float:
    """1.0 if the final answer of the response is that of the label, which may have thoughts and tags too; else 0.0."""
    return accuracy(sample.response, sample.label or "")


def openr1mm_accuracy_format_reward(args: Any, sample: Sample) -> float:
    """`openr1mm`, plus 1.0 for one `<think>...</think>` followed by one `<answer>...</answer>` and nothing else."""
    return accuracy(sample.response, sample.label or "") + well_formed(sample.response)


def accuracy(response: str, label: str) -> float:
    """1.0 if both have the same final answer: as text, as the one letter of a choice, or mathematically.

    Repeated or unfinished tags score 0.0, as do several choices at once and an empty answer.
    """
    answer, gold = final_answer(response), final_answer(label)
    if not answer or not gold or len(_MARKER.findall(answer)) > 1:
        return 0.0
    if answer == gold:
        return 1.0
    chosen, right = _choice(answer), _choice(gold)
    if right and not chosen and _MARKER.search(answer):
        return 0.0
    if chosen and right:
        if chosen[0] != right[0]:
            return 0.0
        if not chosen[1] or not right[1]:
            return 1.0
    answer = chosen[1] if chosen and chosen[1] else answer
    gold = right[1] if right and right[1] else gold
    if answer == gold:
        return 1.0
    if symbolic.explodes(answer) or symbolic.explodes(gold):
        return 0.0
    return float(symbolic.equal(symbolic.parse(gold), symbolic.parse(answer)))


def final_answer(text: str) -> str | None:
    """The content of `<answer>` after the thoughts, or all that follows them; None for repeated or unfinished tags."""
    text = text.strip().removesuffix(END_OF_TURN)
    if any(text.count(tag) > 1 for tag in TAGS):
        return None
    text = text.rpartition(THOUGHTS_END)[2]
    answer = _ANSWER.search(text)
    if answer and "<think>" not in text:
        return answer[1].strip()
    return None if any(tag in text for tag in TAGS) else text.strip()


def well_formed(response: str) -> float:
    """1.0 for one pair of thoughts and one of answer, neither empty; the opening tag may have been in the prompt."""
    text = response.strip()
    text = (text if text.startswith("<think>") else "<think>" + text).removesuffix(END_OF_TURN).rstrip()
    match = _FORMAT.fullmatch(text)
    once = all(text.count(tag) == 1 for tag in TAGS)
    return float(once and match is not None and bool(match[1].strip()) and bool(match[2].strip()))


def _choice(text: str) -> tuple[str, str] | None:
    """The letter of an explicit choice and the text given with it; None for prose and for several letters."""
    bare = _BARE_CHOICE.fullmatch(text)
    if bare and text.count("(") == text.count(")"):
        return bare[1], ""
    match = _CHOICE.fullmatch(text)
    if match is None or (match[2] and _MARKER.search(match[2])):
        return None
    return match[1], (match[2] or "").strip()
