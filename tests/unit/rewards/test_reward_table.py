"""The built-in rewards at the edges of their rules; what peers say of the rest is in `test_graders`."""

from __future__ import annotations

import inspect
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from relax_engine.rewards.deepscaler import deepscaler_reward
from relax_engine.rewards.f1 import f1_reward
from relax_engine.rewards.format import format_reward
from relax_engine.rewards.functions import call_reward
from relax_engine.rewards.geo3k import geo3k_reward
from relax_engine.rewards.gpqa import gpqa_reward
from relax_engine.rewards.gsm8k import gsm8k_reward
from relax_engine.rewards.length import length_reward
from relax_engine.rewards.mopd import mopd_reward
from relax_engine.rewards.openr1mm import openr1mm_reward
from relax_engine.rewards.registry import BUILTIN
from relax_engine.rewards.repetition import repetition_reward
from relax_engine.rewards.search_em import search_em_reward
from relax_engine.rewards.terms import term_score
from relax_engine.types import Sample, SampleStatus
from relax_engine.utils.hooks import load_function

ARGS = SimpleNamespace(seed=0, rollout_max_response_len=100)
COMPARES = sorted(
    set(BUILTIN)
    - {"dummy", "random", "length", "repetition", "format", "ifbench", "ifeval", "genrm", "dapo-genrm", "remote_rm"}
    - {"openr1mm_benchmark", "openr1mm_accuracy_format"}
)


def sample(response: str, label: str | None = None, **metadata: Any) -> Sample:
    return Sample(response=response, label=label, metadata=metadata)


@pytest.mark.parametrize("name", COMPARES)
@pytest.mark.parametrize("response", ["", "<answer></answer>", "\\boxed{}", "Answer: ", "</think>", "```python\n```"])
def test_nothing_equals_an_empty_label(name: str, response: str) -> None:
    entry = BUILTIN[name]
    for label in ("", " ", None):
        value = call_reward(load_function(entry.reference), ARGS, sample(response, label))
        assert term_score(value) == entry.lowest or (name == "mopd" and term_score(value) == -1.0)


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_every_built_in_is_what_the_registry_says(name: str) -> None:
    entry = BUILTIN[name]
    function = load_function(entry.reference)
    assert inspect.iscoroutinefunction(function) == entry.run_async
    assert (entry.lowest is None) == entry.run_async
    assert list(inspect.signature(function).parameters)[:2] == ["args", "sample"]


def test_deepscaler_grades_answers_without_thoughts_and_not_thoughts_without_answers() -> None:
    right = "so \\boxed{42}"
    assert deepscaler_reward(None, sample(right, "42")) == 1.0
    assert deepscaler_reward(None, sample(right, "42"), require_mark=True) == 0.0
    assert deepscaler_reward(None, sample("<think>" + right, "42")) == 0.0
    cut_off = sample(right, "42")
    cut_off.status = SampleStatus.TRUNCATED
    assert deepscaler_reward(None, cut_off) == 0.0
    assert deepscaler_reward(None, sample(right + "</think>no box", "42")) == 0.0
    assert deepscaler_reward(None, sample("a</think>\\boxed{1}</think>\\boxed{42}", "42")) == 1.0


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<think>x</think> \\boxed{7}", 1.0),
        ("x</think> \\boxed{7}", 1.0),
        ("\\boxed{7}", 0.9),
        ("<think>x</think> \\boxed{8}", 0.1),
        ("<think>x \\boxed{7}</think> seven", 0.9),
        ("seven", 0.0),
    ],
)
def test_geo3k(response: str, score: float) -> None:
    assert geo3k_reward(None, sample(response, "7")) == pytest.approx(score)


def test_gsm8k_takes_whole_solutions_as_labels() -> None:
    assert gsm8k_reward(None, sample("#### 1,234", "so <<1200+34>> it is\n#### 1234")) == 1.0
    assert gsm8k_reward(None, sample("it is 1,234", "1234")) == 0.0
    assert gsm8k_reward(None, sample("it is 1,234 .", "1234"), method="flexible") == 1.0
    with pytest.raises(ValueError, match="write 'strict' or 'flexible'"):
        gsm8k_reward(None, sample("1", "1"), method="loose")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("response", "metadata", "score"),
    [
        ("The answer is definitely B", {}, 1.0),
        ("The answer is a bit hard, but choose (B)", {}, 1.0),
        ("Option A looks right. Final answer: **B**", {}, 1.0),
        ("<think>answer: B</think>Answer: C", {}, 0.0),
        ("\\boxed{\\text{B}}", {}, 1.0),
        ("answer: b.", {}, 1.0),
        ("It is the second one", {"choices": ["first one", "second one"]}, 1.0),
        ("It is the first one", {"choices": ["first one", "second one"]}, 0.0),
        ("I would say E", {"valid_letters": ["A", "B"]}, 0.0),
    ],
)
def test_gpqa(response: str, metadata: dict[str, Any], score: float) -> None:
    assert gpqa_reward(None, sample(response, "B", **metadata)) == score


def test_gpqa_labels() -> None:
    choices = ["red", "green", "blue"]
    assert gpqa_reward(None, sample("Answer: C", "2", choices=choices)) == 1.0
    assert gpqa_reward(None, sample("Answer: C", "Blue!", choices=choices)) == 1.0
    assert gpqa_reward(None, sample("Answer: C", "", choices=choices, correct_letter="c")) == 1.0
    assert gpqa_reward(None, sample("", "", choices=choices)) == 0.0


@pytest.mark.parametrize(
    ("source", "response", "label", "score"),
    [
        ("hiyouga/geometry3k", "\\boxed{0.5}", "\\frac12", 1.0),
        ("hiyouga/geometry3k", "0.5", "\\frac12", 0.0),
        ("multimodal-open-r1-8k", "<answer>Paris</answer>", "Paris", 1.0),
        ("dapo-math", "Answer: 7", "7", 1.0),
        ("dapo-math", "Answer: 8", "7", -1.0),
        ("gsm8k", "#### 1,200", "1200", 1.0),
        ("gsm8k", "Answer: 100 miles", "100.0", 1.0),
        ("gsm8k", "Answer: 12.50", "12.5", 1.0),
        ("gsm8k", "Answer: 7<|im_end|>Answer: 8", "7", 1.0),
        ("gsm8k", "#### 7\n" * 6, "7", -1.0),
        ("gsm8k", "#### 7\n" * 5, "7", 1.0),
        ("", "Answer: -3", '{"ground_truth": "-3"}', 1.0),
        ("", "", "[INVALID]", -1.0),
    ],
)
def test_mopd_routes_by_data_source(source: str, response: str, label: str, score: float) -> None:
    assert mopd_reward(None, sample(response, label, data_source=source)) == score


def test_openr1mm_does_not_read_answers_in_thoughts() -> None:
    assert openr1mm_reward(None, sample("<think>\\boxed{4}</think> no idea", "4")) == 0.0
    assert openr1mm_reward(None, sample("<think>5</think><answer>$\\frac{8}{2}$</answer>", "$4$")) == 1.0
    assert openr1mm_reward(None, sample("<answer>(B) or (C)</answer>", "B")) == 0.0


def test_several_right_answers() -> None:
    answers = {"answers": ["the Big Apple", "New York City"]}
    assert f1_reward(None, sample("New York", **answers)) == pytest.approx(0.8)
    assert f1_reward(None, sample("<think>Big Apple</think><answer>Boston</answer>", **answers)) == 0.0
    assert search_em_reward(None, sample("<answer>new york city.</answer>", **answers)) == 1.0
    assert search_em_reward(None, sample("<answer>in New York City, NY</answer>", **answers)) == 0.0
    assert search_em_reward(None, sample("<answer>in New York City, NY</answer>", **answers), match="substring") == 1.0
    assert search_em_reward(None, sample("<answer>Boston</answer>", json.dumps(["x"])), format_score=0.1) == 0.1
    assert search_em_reward(None, sample("<answer>the</answer>", "a")) == 0.0


@pytest.mark.parametrize(
    ("form", "response", "score"),
    [
        ("think", "<think>a</think>b", 1.0),
        ("think", "a</think>b", 1.0),
        ("think", "a</think> ", 0.0),
        ("think", "a</think>b</think>c", 0.0),
        ("think_answer", "<think>a</think>\n<answer>b</answer>", 1.0),
        ("think_answer", "<think>a</think>\n<answer>b</answer> c", 0.0),
        ("think_answer", "<think> </think><answer>b</answer>", 0.0),
        ("answer", "so <answer>b</answer>", 1.0),
        ("answer", "<answer></answer>", 0.0),
        ("boxed", "<think>\\boxed{1}</think>2", 0.0),
        ("boxed", "<think>1</think>\\boxed{2}", 1.0),
    ],
)
def test_forms(form: str, response: str, score: float) -> None:
    assert format_reward(None, sample(response), form=form) == score
    assert format_reward(None, sample(response), form=form, miss=-1.0) == (score or -1.0)


def test_form_of_ones_own() -> None:
    assert format_reward(None, sample("x\ny"), pattern="x.*") == 1.0
    with pytest.raises(ValueError, match="unterminated"):
        format_reward(None, sample("x"), pattern="(")
    with pytest.raises(ValueError, match="write one of think, think_answer, answer, boxed"):
        format_reward(None, sample("x"), form="boxes")


@pytest.mark.parametrize(("tokens", "score"), [(0, -1.0), (5, -0.5), (10, 0.0), (80, 0.0), (85, -0.25), (100, -1.0)])
def test_length(tokens: int, score: float) -> None:
    scored = Sample(response_length=tokens)
    slope = 10 if tokens < 10 else 20
    assert length_reward(ARGS, scored, target=80, slope=slope, minimum=10) == score


def test_length_ends_at_the_response_limit_by_default() -> None:
    assert length_reward(ARGS, Sample(response_length=90), slope=20) == -0.5
    with pytest.raises(ValueError, match="minimum 90 exceeds the target of 80 tokens"):
        length_reward(ARGS, Sample(), slope=20, minimum=90)


def test_repetition() -> None:
    assert repetition_reward(None, sample("a b c d"), ngram=2) == 0.0
    assert repetition_reward(None, sample("a b a b a"), ngram=2) == -0.5
    assert repetition_reward(None, sample("A b a B"), ngram=2, penalty=-3.0) == pytest.approx(-1.0)
    assert repetition_reward(None, sample("short"), ngram=2) == 0.0
    assert repetition_reward(None, sample("重复的话" * 50), ngram=4) < -0.9


HOSTILE = ["</think>", "<answer>", "<think>", "\n", "```\n", "\\boxed{", "#### 1", "A ", ". ", "*"]


@pytest.mark.parametrize("name", sorted(name for name, entry in BUILTIN.items() if not entry.run_async))
def test_no_response_takes_long(name: str) -> None:
    function = load_function(BUILTIN[name].reference)
    label = {"openr1mm_benchmark": '{"answer": "7"}', "code": ""}.get(name, "7")
    metadata = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    for pattern in HOSTILE:
        response = pattern * (30_000 // len(pattern))
        started = time.process_time()
        call_reward(function, ARGS, Sample(response=response, label=label, metadata=metadata))
        assert time.process_time() - started < 1.0, pattern
