"""Rewards made of several, and which reward a row gets."""

from __future__ import annotations

from typing import Any

import pytest

from relax_engine.rewards import RewardSettings
from relax_engine.rewards.choice import RewardChoice, infer
from relax_engine.rewards.registry import reward_entry
from relax_engine.rewards.terms import RewardTerm, combine, read_terms, term_score
from relax_engine.types import Sample


def test_reading_terms() -> None:
    assert read_terms({"math": 0.9, "loops": {"reward": "repetition", "weight": 2, "ngram": 8}, "format": {}}) == (
        RewardTerm("math", 0.9, "math"),
        RewardTerm("loops", 2.0, "repetition", {"ngram": 8}),
        RewardTerm("format", 1.0, "format"),
    )
    with pytest.raises(ValueError, match="its weight True is no finite number"):
        read_terms({"math": True})
    with pytest.raises(ValueError, match="that is the name of the sum"):
        read_terms({"score": 1.0})


def test_the_sum_and_its_parts() -> None:
    terms = read_terms({"math": 1.0, "loops": {"weight": 0.5, "reward": "repetition"}})
    assert combine(terms, [1.0, -0.4], "score") == {"score": pytest.approx(0.8), "math": 1.0, "loops": -0.4}
    assert term_score({"score": -1, "acc": False}) == -1.0
    with pytest.raises(ValueError, match="none of which is `score`"):
        term_score({"acc": True})
    with pytest.raises(ValueError, match="no finite number"):
        term_score(float("inf"))


@pytest.mark.parametrize(
    ("label", "metadata", "name"),
    [
        ("-3/4", {}, "math"),
        ("\\frac12", {}, None),
        ("<answer>B</answer>", {}, "multiple_choice"),
        ("B", {"choices": ["x", "y"], "correct_letter": "B"}, "gpqa"),
        ("", {"tests": ["assert f()"]}, "code"),
        ("{}", {"instruction_id_list": ["punctuation:no_comma"]}, "ifbench"),
        ("7", {"tests": ["assert f()"]}, None),
    ],
)
def test_what_a_row_looks_like(label: str, metadata: dict[str, Any], name: str | None) -> None:
    assert infer(Sample(label=label, metadata=metadata)) == name


def test_order_of_choice(caplog: pytest.LogCaptureFixture) -> None:
    number, named = Sample(label="7"), Sample(label="7", metadata={"rm_type": "f1"})
    unknown = Sample(metadata={"rm_type": "no_such"})
    assert RewardChoice(RewardSettings(rm_type="gsm8k")).entry(named) == reward_entry("f1")
    assert RewardChoice(RewardSettings(rm_type="gsm8k", rm_type_infer=True)).entry(number) == reward_entry("gsm8k")
    guessing = RewardChoice(RewardSettings(rm_type_infer=True, rm_type_fallback="zero"))
    assert guessing.entry(number) == reward_entry("math")
    assert [guessing.entry(Sample()) for _ in range(3)] == [reward_entry("dummy")] * 3
    assert guessing.entry(unknown) == reward_entry("dummy")
    assert [record.getMessage() for record in caplog.records] == [
        "rows name no reward: --rm-type-fallback zero scores these samples",
        "reward 'no_such' is unknown: --rm-type-fallback zero scores these samples",
    ]
    with pytest.raises(ValueError, match="unknown reward 'no_such'"):
        RewardChoice(RewardSettings(rm_type="math")).entry(unknown)
    with pytest.raises(ValueError, match="unknown reward 'zeros'"):
        RewardChoice(RewardSettings(rm_type_fallback="zeros"))


def test_boxed_prefix() -> None:
    assert reward_entry("boxed_f1").boxed
    assert reward_entry("boxed_f1").reference == reward_entry("f1").reference
    with pytest.raises(ValueError, match="unknown reward 'f2'"):
        reward_entry("boxed_f2")


def test_terms_and_groups_exclude_one_another() -> None:
    with pytest.raises(ValueError, match="--reward-terms are scored sample by sample"):
        RewardSettings(terms=read_terms({"math": 1.0}), group_rm=True)
