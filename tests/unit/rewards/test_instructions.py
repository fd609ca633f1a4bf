"""Instructions that a program checks: IFBench's own verdicts, and IFEval's rules at their edges.

`ifbench.jsonl` has 145 responses with the verdicts of allenai/IFBench at db69a6f, strict and loose.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relax_engine.rewards.instruction_following import instruction_reward
from relax_engine.rewards.instructions.checks import follows, instruction_ids
from relax_engine.rewards.instructions.english import sentences, syllables, word_tokens
from relax_engine.rewards.instructions.languages import language_of
from relax_engine.types import Sample

CASES = [json.loads(line) for line in Path(__file__).with_name("ifbench.jsonl").read_text().splitlines()]
DIFFERENT = {
    "ifbench-255": "it begins with the verb Understand, which IFBench's tagger takes for a name",
    "ifbench-258": "it begins with the verb Build, which IFBench's tagger takes for a name",
}


def sample_of(case: dict[str, Any]) -> Sample:
    metadata = {"instruction_id_list": case["instruction_id_list"], "kwargs": case["kwargs"]}
    return Sample(response=case["response"], metadata=metadata)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_verdicts_of_ifbench(case: dict[str, Any]) -> None:
    pairs = zip(case["instruction_id_list"], case["kwargs"], strict=True)
    followed = [follows(case["response"], name, arguments) for name, arguments in pairs]
    strict, loose = (instruction_reward(None, sample_of(case), loose=loose) for loose in (False, True))
    if case["id"] in DIFFERENT:
        assert followed != case["strict_follow_list"], DIFFERENT[case["id"]]
    else:
        assert followed == case["strict_follow_list"]
        assert (strict, loose) == (case["strict_all"], case["loose_all"])


def test_both_lists_are_complete() -> None:
    families = {name.partition(":")[0] for name in instruction_ids()}
    assert len(instruction_ids()) == 25 + 58
    assert {"keywords", "change_case", "combination", "custom", "ratio", "repeat", "words"} <= families


@pytest.mark.parametrize(
    ("name", "arguments", "yes", "no"),
    [
        ("keywords:existence", {"keywords": ["tea", "C++"]}, "Tea and c++.", "Tea and C."),
        ("keywords:frequency", {"keyword": "go", "frequency": 2, "relation": "less than"}, "go on", "go, going"),
        ("keywords:forbidden_words", {"forbidden_words": ["bad"]}, "a badger", "a BAD one"),
        ("keywords:letter_frequency", {"letter": "e", "let_frequency": 3, "let_relation": "at least"}, "eEe", "ee"),
        ("language:response_language", {"language": "de"}, "Das ist nicht mein Hund.", "That is not my dog."),
        ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "a b c", "a b"),
        (
            "length_constraints:number_sentences",
            {"num_sentences": 2, "relation": "less than"},
            "I saw Dr. Who.",
            "A. So. B.",
        ),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\n***\nb"),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
            "a\n\nThen, b",
            "a\n\nThenb",
        ),
        ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a]"),
        ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "x\nP.P.S ok", "x\nP.S. ok"),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n** b"),
        ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
        ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* *b*", "*a* **"),
        (
            "detectable_format:multiple_sections",
            {"section_spliter": "Section", "num_sections": 2},
            "Section 1 a Section 2 b",
            "Section a",
        ),
        ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
        ("detectable_format:title", {}, "<<joy>>", "<< >>"),
        ("combination:two_responses", {}, "a******b", "a******a"),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "say it. done", "done. say it"),
        ("startend:end_checker", {"end_phrase": "Over."}, 'we are "over."', "over. not"),
        ("startend:quotation", {}, '"a"', '"a" b'),
        (
            "change_case:capital_word_frequency",
            {"capital_frequency": 1, "capital_relation": "at least"},
            "see NASA",
            "see it",
        ),
        ("change_case:english_capital", {}, "THIS IS IT", "This is it"),
        ("change_case:english_lowercase", {}, "this is it", "THIS is it"),
        ("punctuation:no_comma", {}, "a; b", "a, b"),
    ],
)
def test_ifeval(name: str, arguments: dict[str, Any], yes: str, no: str) -> None:
    assert follows(yes, name, arguments)
    assert not follows(no, name, arguments)
    assert not follows(" ", name, arguments)


def test_reward_counts_all_or_a_share_of_what_follows_the_thoughts() -> None:
    metadata = {"instruction_id_list": ["punctuation:no_comma", "detectable_format:title"], "kwargs": [{}, {"a": None}]}
    sample = Sample(response="<think>well, ...</think>no title", metadata=metadata)
    assert instruction_reward(None, sample) == 0.0
    assert instruction_reward(None, sample, partial=True) == 0.5


def test_faults_of_the_data_are_errors() -> None:
    with pytest.raises(ValueError, match="no `instruction_id_list`"):
        instruction_reward(None, Sample(response="x"))
    with pytest.raises(ValueError, match="unknown instruction 'keyword:existence'; did you mean 'keywords:existence'"):
        follows("x", "keyword:existence", {})
    with pytest.raises(ValueError, match=r"does not take the arguments \['letters'\]"):
        follows("x", "keywords:letter_frequency", {"letters": "a"})
    with pytest.raises(ValueError, match="2 instructions and 1 `kwargs`"):
        instruction_reward(None, Sample(response="x", metadata={"instruction_id_list": ["a", "b"], "kwargs": [{}]}))


def test_english() -> None:
    text = 'I met Mr. J. Doe, e.g. today. "Stop!" he said... then left. It cost 3.50. OK'
    assert sentences(text) == [
        "I met Mr. J. Doe, e.g. today.",
        '"Stop!"',
        "he said... then left.",
        "It cost 3.50.",
        "OK",
    ]
    assert word_tokens("Don't go, it's 3.50!") == ["Do", "n't", "go", ",", "it", "'s", "3.50", "!"]
    assert [syllables(word) for word in ["cat", "table", "created", "banana", "rhythm", "the"]] == [1, 2, 3, 3, 1, 1]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Hello world, this is a test", "en"),
        ("Ceci n'est pas une pipe, mais un test pour vous", "fr"),
        ("Esta es una prueba para los alumnos", "es"),
        ("Este é um teste para os alunos, mas não é bom", "pt"),
        ("これはテストです", "ja"),
        ("这是测试", "zh-cn"),
        ("यह एक परीक्षण है", "hi"),
        ("हे एक चाचणी आहे", "mr"),
        ("Это тест, который работает", "ru"),
        ("Це тест, який працює", "uk"),
        ("این یک آزمایش است", "fa"),
        ("یہ ایک ٹیسٹ ہے", "ur"),
        ("هذا اختبار بسيط للغة العربية", "ar"),
        ("12 + 30 = 42", None),
    ],
)
def test_languages(text: str, code: str | None) -> None:
    assert language_of(text) == code
