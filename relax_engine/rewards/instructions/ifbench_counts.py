"""IFBench's instructions `count:` and `ratio:`, arXiv 2507.02833."""

from __future__ import annotations

import re

from relax_engine.rewards.instructions.checks import check
from relax_engine.rewards.instructions.english import (
    CONJUNCTIONS,
    EDGES,
    PRONOUNS,
    STOP_WORDS,
    sentences,
    without_punctuation,
    word_count,
    word_tokens,
    words_of,
)

PERSON_NAMES = words_of(
    """Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin
    Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria
    Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella
    Jonathan"""
)
KEYWORD_COUNTS = (1, 2, 3, 5, 7)
OVERLAP_TOLERANCE = 2.0

_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_INTERROBANG = re.compile(r"\?!|!\?|‽")


@check("count:word_count_range")
def word_count_range(response: str, min_words: int, max_words: int) -> bool:
    """The number of words is in the range, ends included."""
    return min_words <= word_count(response) <= max_words


@check("count:unique_word_count")
def unique_words(response: str, N: int) -> bool:
    """At least N different words."""
    return len({word.strip(EDGES) for word in response.lower().split()}) >= N


@check("count:conjunctions")
def conjunctions(response: str, small_n: int) -> bool:
    """At least so many different coordinating conjunctions."""
    words = {word.strip(EDGES).lower() for word in response.split()}
    return len(words & CONJUNCTIONS) >= small_n


@check("count:person_names")
def person_names(response: str, N: int) -> bool:
    """At least N different names of the fixed list."""
    return sum(re.search(rf"\b{name}\b", response) is not None for name in PERSON_NAMES) >= N


@check("count:numbers")
def numbers(response: str, N: int) -> bool:
    """Exactly N numbers, once punctuation is gone."""
    return len(re.findall(r"\d+", without_punctuation(response))) == N


@check("count:punctuation")
def all_punctuation(response: str) -> bool:
    """Every mark of `. , ! ? ; :` and an interrobang besides."""
    if not _INTERROBANG.search(response):
        return False
    rest = response.replace("?!", "", 1) if "?!" in response else response.replace("!?", "", 1)
    return set(".,!?;:") <= set(rest)


@check("count:pronouns")
def pronouns(response: str, N: int) -> bool:
    """At least N pronouns."""
    return sum(word in PRONOUNS for word in word_tokens(response.lower().replace("/", " "))) >= N


@check("count:words_japanese")
def japanese_words(response: str, N: int) -> bool:
    """Every N-th word is Japanese, numbers aside."""
    words = [word.strip(EDGES) for word in response.split()]
    return all(not word or word.isdigit() or _JAPANESE.search(word) for word in words[N - 1 :: N])


@check("count:keywords_multiple")
def keywords_so_often(response: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """The keywords occur exactly 1, 2, 3, 5 and 7 times, also inside of words."""
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    text = response.lower()
    return all(text.count(word.lower()) == count for word, count in zip(keywords, KEYWORD_COUNTS, strict=True))


@check("ratio:stop_words")
def stop_words(response: str, percentage: float) -> bool:
    """At most so many words in a hundred are stop words."""
    words = re.findall(r"\w+", response.lower())
    return bool(words) and 100 * sum(word in STOP_WORDS for word in words) / len(words) <= percentage


@check("ratio:sentence_type")
def two_statements_to_a_question(response: str) -> bool:
    """Twice as many statements as questions."""
    return _ending(response, ".") == 2 * _ending(response, "?")


@check("ratio:sentence_balance")
def balanced_sentences(response: str) -> bool:
    """As many statements as questions as exclamations."""
    return _ending(response, ".") == _ending(response, "?") == _ending(response, "!")


@check("ratio:overlap")
def overlap(response: str, reference_text: str, percentage: float) -> bool:
    """The share of distinct character trigrams that the reference has too, within two percent."""
    trigrams, reference = _trigrams(response), _trigrams(reference_text)
    return bool(trigrams) and abs(100 * len(trigrams & reference) / len(trigrams) - percentage) <= OVERLAP_TOLERANCE


@check("ratio:sentence_words")
def three_sentences_of_one_length(response: str) -> bool:
    """Three sentences with the same number of characters."""
    found = sentences(response)
    return len(found) == 3 and len({len(sentence.strip()) for sentence in found}) == 1


def _ending(text: str, mark: str) -> int:
    return sum(sentence.endswith(mark) for sentence in sentences(text))


def _trigrams(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(len(text) - 2)}
