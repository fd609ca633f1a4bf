"""What a judging model is asked, and what its answer means. Pure: no network.

What lives here: prompts, verdicts, and the answer of two orders taken together. What does not: calling the model
(`genrm`).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, NamedTuple

from relax_engine.rewards.extract import after_thoughts
from relax_engine.types import Sample

GRADE = """You grade an answer against a reference.

Problem:
{question}

Reference answer:
{label}

Answer to grade:
{response}

Is the answer to grade the same answer as the reference, apart from its wording? Differences of notation and units do
not matter, differences of value do. Think briefly, then end with one line: `Judgement: Yes` or `Judgement: No`."""

SCORE = """You grade an answer.

Problem:
{question}

Answer to grade:
{response}

{criteria}

Think briefly, then end with one line `Score: n`, where n is a whole number from {lowest} to {highest}."""

COMPARE = """You compare two answers, A and B, to the same problem.

Problem:
{question}

Answer A:
{first}

Answer B:
{second}

{criteria}

The order of the answers means nothing. Think briefly, then end with one line:
`Better: A`, `Better: B` or `Better: Tie`."""

DEFAULT_CRITERIA = "Judge whether it is correct, complete and clear."

_JUDGEMENT = re.compile(r"judg(?:e?ment)\W*\b(yes|no)\b", re.IGNORECASE)
_SCORE = re.compile(r"(?:score|rating)\W*?(-?\d+(?:\.\d+)?)", re.IGNORECASE)
_BETTER = re.compile(r"better\W*\b(a|b|tie)\b", re.IGNORECASE)


class Better(StrEnum):
    """Which of two answers is better."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"


class Comparison(NamedTuple):
    """Two readings of a pair, in both orders.

    Attributes:
        score: Of the first answer: 1.0 if it is better in both orders, 0.0 if worse in both; 0.5 for ties and where the
            orders disagree; three or one quarters for one tie. None if an answer could not be read.
        failures: How many of the two could not be read.
        consistent: Whether both orders agree.
    """

    score: float | None
    failures: int
    consistent: bool


def question_of(sample: Sample) -> str:
    """The problem: `metadata["question"]`, or the text of the last user message, or the prompt."""
    question = sample.metadata.get("question")
    if question:
        return str(question)
    if isinstance(sample.prompt, str):
        return sample.prompt
    users = [message for message in sample.prompt if message.get("role") == "user"] or list(sample.prompt)
    content: Any = users[-1].get("content", "") if users else ""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
    return str(content)


def grade_prompt(sample: Sample, template: str = GRADE) -> list[dict[str, str]]:
    """Messages that ask whether the response (what follows its thoughts) is the label."""
    return _ask(template, question=question_of(sample), label=sample.label or "", response=_answer(sample.response))


def score_prompt(
    sample: Sample, *, lowest: int, highest: int, criteria: str = DEFAULT_CRITERIA, template: str = SCORE
) -> list[dict[str, str]]:
    """Messages that ask for a mark from `lowest` to `highest`."""
    return _ask(
        template,
        question=question_of(sample),
        label=sample.label or "",
        response=_answer(sample.response),
        criteria=criteria,
        lowest=lowest,
        highest=highest,
    )


def compare_prompt(
    question: str, first: str, second: str, *, criteria: str = DEFAULT_CRITERIA, template: str = COMPARE
) -> list[dict[str, str]]:
    """Messages that ask which of two answers is better."""
    return _ask(template, question=question, first=_answer(first), second=_answer(second), criteria=criteria)


def read_judgement(text: str) -> bool | None:
    """The last `Judgement: Yes` or `No` after the thoughts; None if there is none."""
    found = _JUDGEMENT.findall(after_thoughts(text))
    return found[-1].lower() == "yes" if found else None


def read_score(text: str, lowest: float, highest: float) -> float | None:
    """The last `Score: n` after the thoughts, as a share of the range; None if there is none within it."""
    found = _SCORE.findall(after_thoughts(text))
    if not found or not lowest <= float(found[-1]) <= highest:
        return None
    return (float(found[-1]) - lowest) / (highest - lowest)


def read_better(text: str, *, swapped: bool = False) -> Better | None:
    """The last `Better: ...` after the thoughts; `swapped` if A was the second answer. None if there is none."""
    found = _BETTER.findall(after_thoughts(text))
    if not found:
        return None
    letter = found[-1].lower()
    if letter == "tie":
        return Better.TIE
    return Better.FIRST if (letter == "a") != swapped else Better.SECOND


def both_orders(forward: str, backward: str) -> Comparison:
    """What the judge's answers to (first, second) and to (second, first) say together."""
    readings = (read_better(forward), read_better(backward, swapped=True))
    points = [{Better.FIRST: 1.0, Better.TIE: 0.5, Better.SECOND: 0.0}[reading] for reading in readings if reading]
    failures = len(readings) - len(points)
    return Comparison(None if failures else sum(points) / 2, failures, not failures and readings[0] == readings[1])


def _answer(response: str) -> str:
    return after_thoughts(response).strip()


def _ask(template: str, **values: Any) -> list[dict[str, str]]:
    """Fill in the template's names, and leave every other brace alone."""
    names = re.compile("|".join(re.escape("{" + name + "}") for name in values))
    return [{"role": "user", "content": names.sub(lambda match: str(values[match[0][1:-1]]), template)}]
