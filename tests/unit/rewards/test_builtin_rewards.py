"""The built-in rewards where no peer's verdict says it: bad labels, threads, long answers, chance."""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace

import pytest

from relax_engine.rewards import label_problem
from relax_engine.rewards.dapo import dapo_reward
from relax_engine.rewards.exact_match import exact_match_reward
from relax_engine.rewards.math import math_reward
from relax_engine.rewards.random_score import random_reward
from relax_engine.types import Sample


@pytest.mark.parametrize("label", ["42", "$42$", "\\boxed{42}", "\\frac{84}{2}", "42.0"])
def test_math_labels_in_any_notation(label: str) -> None:
    assert math_reward(None, Sample(response="so \\boxed{41+1}", label=label)) == 1.0
    assert math_reward(None, Sample(response="so \\boxed{41}", label=label)) == 0.0


@pytest.mark.parametrize("response", ["", "42", "\\boxed{42", "\\boxed{}", "\\boxed{\\frac{}", "\\boxed{it is 42? no}"])
def test_math_scores_zero_without_a_usable_box(response: str) -> None:
    assert math_reward(None, Sample(response=response, label="43")) == 0.0


@pytest.mark.parametrize("label", ["", "  ", "???", "\\frac{1"])
def test_no_answer_equals_an_unusable_label_and_validation_finds_it(label: str) -> None:
    assert math_reward(None, Sample(response="\\boxed{1}", label=label)) == 0.0
    assert label_problem("math", label) is not None
    assert label_problem("math", "\\sqrt{2}") is None


@pytest.mark.parametrize("name", ["dapo", "exact_match"])
def test_empty_label_is_a_problem_for_text_rewards(name: str) -> None:
    assert label_problem(name, " ") == "the label is empty"
    assert label_problem(name, "word") is None
    assert label_problem("random", "") is None


def test_math_leaves_the_alarm_signal_as_it_was() -> None:
    before = signal.getsignal(signal.SIGALRM)
    math_reward(None, Sample(response="\\boxed{1}", label="1"))
    assert signal.getsignal(signal.SIGALRM) is before
    signal.setitimer(signal.ITIMER_REAL, 30.0)
    try:
        math_reward(None, Sample(response="\\boxed{1}", label="1"))
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 25.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def test_math_works_outside_the_main_thread() -> None:
    scores: list[float] = []
    sample = Sample(response="\\boxed{2+2}", label="4")
    thread = threading.Thread(target=lambda: scores.append(math_reward(None, sample)))
    thread.start()
    thread.join(30.0)
    assert scores == [1.0]


def test_math_gives_up_on_an_answer_that_cannot_be_evaluated() -> None:
    started = time.monotonic()
    assert math_reward(None, Sample(response="\\boxed{9^{9^{9^{9^{9}}}}}", label="3")) == 0.0
    assert time.monotonic() - started < 15.0


@pytest.mark.parametrize(
    ("response", "label", "score", "prediction"),
    [
        ("work\nAnswer: $1,234$ dollars", "1234", 1.0, "1234"),
        ("Answer: 41\nno wait\nAnswer: 42", "42.0", 1.0, "42"),
        ("ANSWER : \\frac12", "\\frac{1}{2}", 1.0, "\\frac{1}{2}"),
        ("the result is 42", "42", -1.0, "[INVALID]"),
        ("Answer: 42" + "." * 300, "42", -1.0, "[INVALID]"),
    ],
)
def test_dapo(response: str, label: str, score: float, prediction: str) -> None:
    expected = {"score": score, "acc": score > 0, "pred": prediction}
    assert dapo_reward(None, Sample(response=response, label=label)) == expected


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (" olleh \n", 1.0),
        ("<answer>nope</answer> or <answer>\nolleh</answer>", 1.0),
        ("Olleh", 0.0),
        ("the answer is olleh", 0.0),
        ("", 0.0),
    ],
)
def test_exact_match(response: str, score: float) -> None:
    assert exact_match_reward(None, Sample(response=response, label="olleh")) == score


def test_random_is_a_fair_coin_that_repeats() -> None:
    samples = [Sample(index=index, group_index=index // 4) for index in range(2000)]
    first = [random_reward(SimpleNamespace(seed=1), sample) for sample in samples]
    assert first == [random_reward(SimpleNamespace(seed=1), sample) for sample in samples]
    assert first != [random_reward(SimpleNamespace(seed=2), sample) for sample in samples]
    assert set(first) == {0.0, 1.0}
    assert sum(first) == pytest.approx(1000, abs=100)
