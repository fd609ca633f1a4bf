"""Answers graded by other projects' functions; `graders.jsonl` has their verdicts.

Sources: math-verify 0.9.0 (and its tests at 5d148cf), verl 0.8.0.dev, slime 624b824a8, and the tests
of the original engine. Where ours differs on purpose, `DIFFERENT` says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relax_engine.rewards.boxed import last_boxed
from relax_engine.rewards.dapo import dapo_reward, normalize_answer
from relax_engine.rewards.math import equal, math_reward, parse
from relax_engine.types import Sample

CASES = [json.loads(line) for line in Path(__file__).with_name("graders.jsonl").read_text().splitlines()]

DIFFERENT = {
    "math-verify-0028": "that test extracts LaTeX only; we also read plain expressions",
    "math-verify-0133": "that test compares to three digits; we compare to six",
    "slime-0077": "slime requires fractions in lowest terms; we compare values",
}


def of(kind: str) -> pytest.MarkDecorator:
    chosen = [case for case in CASES if case["kind"] == kind]
    assert chosen
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def expect(case: dict[str, Any], actual: object) -> None:
    if case["id"] in DIFFERENT:
        assert actual == (not case["expected"]), DIFFERENT[case["id"]]
    else:
        assert actual == case["expected"]


@of("equal")
def test_math_verify_verdicts(case: dict[str, Any]) -> None:
    gold, answer = case["args"]
    expect(case, equal(parse(gold), parse(answer)))


@of("equivalence")
def test_equivalence_verdicts(case: dict[str, Any]) -> None:
    answer, gold = case["args"]
    expect(case, bool(math_reward(None, Sample(response=f"\\boxed{{{answer}}}", label=gold))))


@of("math")
def test_boxed_math_verdicts(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    expect(case, math_reward(None, Sample(response=response, label=gold)))


@of("dapo")
def test_dapo_verdicts(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    expect(case, dapo_reward(None, Sample(response=response, label=gold)))


@of("normalize_answer")
def test_minerva_normalisation(case: dict[str, Any]) -> None:
    expect(case, normalize_answer(*case["args"]))


@of("last_boxed")
def test_last_boxed(case: dict[str, Any]) -> None:
    # peers return the box with its command, we return its content
    expected = case["expected"]
    actual = last_boxed(*case["args"])
    if expected is None:
        assert actual is None
    else:
        assert expected in (f"\\boxed{{{actual}}}", f"\\fbox{{{actual}}}", f"\\boxed {actual}")
