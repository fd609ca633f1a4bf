"""Answers graded by other projects' functions; `graders.jsonl` has their verdicts.

Sources: math-verify 0.9.0 (and its tests at 5d148cf), verl 0.8.0.dev, slime 624b824a8, and the tests
of the original engine. Where ours differs on purpose, `DIFFERENT` says why. Two of their tests have no counterpart
here: math-verify's extraction of a letter from prose (`gpqa` has its own rules), and slime's normalisation of None.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relax_engine.rewards.answers.latex import canonical
from relax_engine.rewards.answers.symbolic import equal, parse
from relax_engine.rewards.boxed import last_boxed
from relax_engine.rewards.dapo import dapo_reward, dapo_strict_box_reward, normalize_answer
from relax_engine.rewards.deepscaler import deepscaler_reward
from relax_engine.rewards.extract import last_answer
from relax_engine.rewards.f1 import f1_score, normalize_text
from relax_engine.rewards.gpqa import chosen_letter, gpqa_reward
from relax_engine.rewards.gsm8k import gsm8k_reward
from relax_engine.rewards.math import math_reward
from relax_engine.rewards.openr1mm import openr1mm_accuracy_format_reward, openr1mm_reward, well_formed
from relax_engine.rewards.openr1mm_benchmark import openr1mm_benchmark_reward
from relax_engine.rewards.search_em import search_em_reward
from relax_engine.types import Sample

CASES = [json.loads(line) for line in Path(__file__).with_name("graders.jsonl").read_text().splitlines()]

DIFFERENT = {
    "math-verify-0028": "that test extracts LaTeX only; we also read plain expressions",
    "math-verify-0133": "that test compares to three digits; we compare to six",
    "verl-0255": "verl leaves the separator in -1,234 only where the method is flexible; it is the same number",
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


@of("gsm8k")
def test_gsm8k_verdicts(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    expect(case, gsm8k_reward(None, Sample(response=response, label=gold), **case["kwargs"]))


@of("dapo_strict")
def test_dapo_strict_box_verdicts(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    expect(case, dapo_strict_box_reward(None, Sample(response=response, label=gold)))


@of("strict_box")
def test_strict_box_values(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    reward = dapo_strict_box_reward(None, Sample(response=response, label=gold))
    expect(case, [reward["score"], reward["pred"]])


@of("minerva")
def test_minerva_values(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    reward = dapo_reward(None, Sample(response=response, label=gold))
    expect(case, [reward["acc"], reward["pred"]])


@of("canonical")
def test_canonical_spelling(case: dict[str, Any]) -> None:
    expect(case, canonical(*case["args"]))


@of("unbox")
def test_content_of_a_box(case: dict[str, Any]) -> None:
    expect(case, last_boxed(*case["args"]))


@of("last_answer")
def test_last_answer(case: dict[str, Any]) -> None:
    expect(case, last_answer(*case["args"]))


@of("search_em")
def test_search_verdicts(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    expect(case, search_em_reward(None, Sample(response=response, label=json.dumps(gold))))


@of("deepscaler")
def test_deepscaler_verdicts(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    expect(case, deepscaler_reward(None, Sample(response=response, label=gold)))


@of("f1")
def test_f1_values(case: dict[str, Any]) -> None:
    expect(case, list(f1_score(*case["args"])))


@of("f1_text")
def test_f1_normalisation(case: dict[str, Any]) -> None:
    expect(case, normalize_text(*case["args"]))


@of("gpqa_letter")
def test_gpqa_letters(case: dict[str, Any]) -> None:
    expect(case, chosen_letter(*case["args"]))


@of("gpqa")
def test_gpqa_verdicts(case: dict[str, Any]) -> None:
    sample = Sample(response=case["args"][0], label=str(case["kwargs"]["label"]))
    sample.metadata = case["kwargs"].get("metadata", {})
    expect(case, gpqa_reward(None, sample))


@of("openr1mm")
def test_openr1mm_verdicts(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    expect(case, openr1mm_reward(None, Sample(response=response, label=gold)))


@of("openr1mm_format")
def test_openr1mm_format(case: dict[str, Any]) -> None:
    expect(case, well_formed(case["args"][0]))


@of("openr1mm_accuracy_format")
def test_openr1mm_accuracy_and_format(case: dict[str, Any]) -> None:
    response, gold = case["args"]
    expect(case, openr1mm_accuracy_format_reward(None, Sample(response=response, label=gold)))


@of("openr1mm_benchmark")
def test_openr1mm_benchmark(case: dict[str, Any]) -> None:
    response, record = case["args"]
    expect(case, openr1mm_benchmark_reward(None, Sample(response=response, label=json.dumps(record))))
