"""What a judge is asked, and what its answers mean."""

from __future__ import annotations

import pytest

from relax_engine.rewards.judge import (
    Better,
    Comparison,
    both_orders,
    compare_prompt,
    grade_prompt,
    question_of,
    read_better,
    read_judgement,
    read_score,
    score_prompt,
)
from relax_engine.types import Sample


def test_prompts_show_the_answer_and_not_the_thoughts() -> None:
    sample = Sample(
        prompt=[{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "2+{x}?"}]}],
        response="<think>hm {label}</think> five",
        label="5",
    )
    (message,) = grade_prompt(sample)
    assert message["role"] == "user"
    for part in ("2+{x}?", "\n5\n", "\nfive\n"):
        assert part in message["content"]
    assert "hm" not in message["content"]
    assert question_of(Sample(prompt="p", metadata={"question": "q"})) == "q"
    assert "from 1 to 5" in score_prompt(sample, lowest=1, highest=5)[0]["content"]


def test_a_response_cannot_fill_in_the_template() -> None:
    text = grade_prompt(Sample(prompt="p", response="{label}", label="secret"))[0]["content"]
    assert "Answer to grade:\n{label}" in text
    first, second = "Answer one", "Answer two"
    assert compare_prompt("q", first, second)[0]["content"].index(first) < compare_prompt("q", first, second)[0][
        "content"
    ].index(second)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Judgement: Yes", True),
        ("**Judgment:** no", False),
        ("Judgement: Yes ... on second thought\nJudgement: No.", False),
        ("<think>Judgement: Yes</think>unsure", None),
        ("yes", None),
    ],
)
def test_judgements(text: str, verdict: bool | None) -> None:
    assert read_judgement(text) is verdict


@pytest.mark.parametrize(
    ("text", "score"),
    [("Score: 10", 1.0), ("score: 1", 0.0), ("**Score**: 5.5/10", 0.5), ("Score: 11", None), ("", None)],
)
def test_scores(text: str, score: float | None) -> None:
    assert read_score(text, 1, 10) == score


def test_orders() -> None:
    assert read_better("Better: **A**") is Better.FIRST
    assert read_better("Better: A", swapped=True) is Better.SECOND
    assert read_better("A is better, says nobody") is None
    assert both_orders("Better: A", "Better: B") == Comparison(1.0, 0, True)
    assert both_orders("Better: A", "Better: A") == Comparison(0.5, 0, False)  # it prefers the first place
    assert both_orders("Better: Tie", "Better: A") == Comparison(0.25, 0, False)
    assert both_orders("Better: B", "?") == Comparison(None, 1, False)
