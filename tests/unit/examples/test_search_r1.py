"""The search example: ranking, turns, and data in which every answer can be found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from examples.search_r1.bm25 import BM25
from examples.search_r1.env_search_r1 import CORPUS, NOTHING, build_env
from examples.search_r1.make_corpus import SYLLABLES, Place, make_corpus
from examples.search_r1.make_data import make_data

ARGS = SimpleNamespace(search_top_k=1)
PLACES = [Place.read(json.loads(line)["contents"]) for line in CORPUS.read_text().splitlines()]


def test_scores_are_those_of_the_formula() -> None:
    ranking = BM25(["red fish red", "blue fish", "one two three four"], k1=1.2, b=0.75)
    # Three texts of 3, 2 and 4 words, mean 3: `red` is in one of them, twice; `fish` in two.
    red, fish = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)
    first = red * 2 * 2.2 / (2 + 1.2) + fish * 2.2 / (1 + 1.2)
    second = fish * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3))
    ((one, score), (two, other)) = ranking.search("RED fish, green", 5)
    assert (one, two) == (0, 1)
    assert score == pytest.approx(first)
    assert other == pytest.approx(second)
    assert ranking.search("green", 5) == []
    assert [each for each, _ in BM25(["a", "b a", "a"]).search("a", 2)] == [0, 2]


def test_the_corpus_is_the_one_that_is_made_and_says_every_syllable_once() -> None:
    assert [json.loads(line) for line in CORPUS.read_text().splitlines()] == make_corpus()
    assert len({place.name for place in PLACES}) == 1000
    for place in PLACES:
        spelled = "".join([place.name, *place.facts.values()])
        syllables = [spelled[at : at + 2] for at in range(0, len(spelled), 2)]
        assert len(set(syllables)) == len(syllables) == 8
        assert set(syllables) <= set(SYLLABLES)


def test_every_question_has_its_answer_in_the_text_that_its_own_words_find(tmp_path: Path) -> None:
    rows = {split: pq.read_table(path).to_pylist() for split, path in make_data(tmp_path).items()}
    asked = {split: [row["prompt"][0]["content"].removesuffix("?") for row in rows[split]] for split in rows}
    places = {split: {question.rpartition(" ")[2] for question in asked[split]} for split in ("train", "heldout")}
    assert (len(places["train"]), len(places["heldout"])) == (920, 80)
    assert not places["train"] & places["heldout"]
    for question, row in zip(asked["heldout"], rows["heldout"], strict=True):
        observation, done, info = build_env(args=ARGS).step(f"<search>{question}</search>")
        assert f"{question.partition(' ')[0]} {row['label']}" in observation["obs_str"]
        assert (done, info) == (False, {"searches": 1})


def test_the_warm_start_searches_half_of_the_time_and_answers_from_what_it_is_shown(tmp_path: Path) -> None:
    rows = pq.read_table(make_data(tmp_path)["sft"]).to_pylist()
    first = [row["label"] for row in rows if len(row["prompt"]) == 1]
    assert 0.48 < len(first) / len(rows) < 0.52
    assert 0.48 < sum(label.startswith("<search>") for label in first) / len(first) < 0.52
    question, search, found = next(row for row in rows if len(row["prompt"]) == 3)["prompt"]
    assert search["content"] == f"<search>{question['content'].removesuffix('?')}</search>"
    for row in rows:
        if len(row["prompt"]) == 3:
            attribute = row["prompt"][0]["content"].partition(" ")[0]
            shown = row["prompt"][2]["content"].removeprefix("<information>").removesuffix("</information>")
            assert row["label"] == f"<answer>{Place.read(shown).facts[attribute]}</answer>"
    env = build_env(args=ARGS)
    observation, _, _ = env.step(f"<search>{PLACES[7].name}</search>")
    shown = {"role": "tool", "content": f"<information>{PLACES[7].contents}</information>"}
    assert env.format_observation(observation) == shown
    assert set(found) == set(shown)


def test_a_search_that_misses_shows_another_text_or_none_and_the_last_query_counts() -> None:
    place = PLACES[7]
    env = build_env(args=ARGS)
    assert env.step(f"<search>river of {place.name[:-1]}</search>")[0]["obs_str"] != f"<information>{place.contents}"
    observation, done, _ = env.step("<search>nowhere</search>")
    assert (observation["obs_str"], done) == (f"<information>{NOTHING}</information>", False)
    observation, done, info = env.step(f"<search>x</search> <answer>x</answer> <search>{place.name}</search>")
    assert (place.contents in observation["obs_str"], done, info) == (True, False, {"searches": 3})
    assert env.step("<answer>x</answer>")[1:] == (True, {"searches": 3})
