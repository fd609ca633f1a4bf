"""The judge example: what the judge learns is right, the reward reads it, and it has the form of its questions."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.genrm.make_data import NO, YES, judgement, make_data
from relax_engine.rewards.judge import read_judgement


@pytest.mark.parametrize(
    ("label", "answer", "thought"),
    [
        ("183", "183", f"11=88=33={YES}"),
        ("183", "193", f"11=89!33={NO}"),
        ("183", "18", f"11=88=3-!{NO}"),
        ("183", "1835", f"11=88=33=-5!{NO}"),
        ("183", "", f"1-!8-!3-!{NO}"),
    ],
)
def test_the_judge_compares_character_by_character(label: str, answer: str, thought: str) -> None:
    assert judgement(label, answer) == thought
    assert read_judgement(thought) is (label == answer)


def test_judgements_follow_from_the_answers_with_and_without_tags(tmp_path: Path) -> None:
    paths = make_data(tmp_path)
    rows = {split: pq.read_table(path).to_pylist() for split, path in paths.items()}
    asked = {split: {row["prompt"][0]["content"].partition("\n")[0] for row in table} for split, table in rows.items()}
    assert sum(map(len, asked.values())) == len(set().union(*asked.values()))
    verdicts = []
    for row in rows["judge"]:
        question, right, given = row["prompt"][0]["content"].split("\n")
        label = right.removeprefix("right: ")
        answer = given.removeprefix("given: ").removeprefix("<answer>").removesuffix("</answer>")
        assert label == question.removeprefix("reverse ")[::-1]
        assert row["label"] == judgement(label, answer)
        verdicts.append(label == answer)
    assert 0.33 < sum(verdicts) / len(verdicts) < 0.4
    closed = sum(row["label"].endswith("</answer>") for row in rows["sft"]) / len(rows["sft"])
    assert 0.45 < closed < 0.55
