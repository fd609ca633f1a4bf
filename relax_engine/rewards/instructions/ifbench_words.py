"""IFBench's instructions `words:` and `sentence:`, arXiv 2507.02833."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter

from relax_engine.rewards.instructions.checks import check
from relax_engine.rewards.instructions.english import (
    EDGES,
    PUNCTUATION,
    sentences,
    syllables,
    without_punctuation,
    word_tokens,
)
from relax_engine.rewards.instructions.verbs import is_verb

CONSONANTS = frozenset("bcdfghjklmnpqrstvwxyz")
PRIMES = frozenset((2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97))


@check("words:alphabet")
def alphabet(response: str) -> bool:
    """Each word begins with the letter after the one that began the word before; `a` follows `z`."""
    initials = [word[0].lower() for word in without_punctuation(response).split()]
    if not initials or initials[0] not in string.ascii_lowercase:
        return False
    first = string.ascii_lowercase.index(initials[0])
    return all(initial == string.ascii_lowercase[(first + step) % 26] for step, initial in enumerate(initials))


@check("words:vowel")
def three_vowels(response: str) -> bool:
    """One line that uses at most three different vowels."""
    return "\n" not in response.strip() and len(set("aeiou") & set(response.lower())) <= 3


@check("words:consonants")
def consonant_clusters(response: str) -> bool:
    """Every word has two consonants in a row."""
    return all(
        any(a in CONSONANTS and b in CONSONANTS for a, b in itertools.pairwise(word))
        for word in response.lower().split()
    )


@check("words:palindrome")
def palindromes(response: str) -> bool:
    """At least ten palindromes of five letters or more."""
    words = without_punctuation(response).lower().split()
    return sum(len(word) >= 5 and word == word[::-1] for word in words) >= 10


@check("words:prime_lengths")
def prime_lengths(response: str) -> bool:
    """The length of every word is a prime."""
    return all(len(word) in PRIMES for word in without_punctuation(response).split())


@check("words:start_verb")
def starts_with_verb(response: str) -> bool:
    """The first word is a verb, in any form."""
    tokens = word_tokens(response)
    return bool(tokens) and is_verb(tokens[0])


@check("words:repeats")
def limited_repeats(response: str, small_n: int) -> bool:
    """No word occurs more often than that."""
    counts = Counter(without_punctuation(response.lower()).split())
    return max(counts.values(), default=0) <= small_n


@check("words:odd_even_syllables")
def alternating_syllables(response: str) -> bool:
    """Words of an odd and of an even number of syllables take turns."""
    parities = [syllables(word) % 2 for word in without_punctuation(response).split()]
    return all(a != b for a, b in itertools.pairwise(parities))


@check("words:last_first")
def chained_sentences(response: str) -> bool:
    """Each sentence begins with the word that ended the one before."""
    for before, after in itertools.pairwise(sentences(response)):
        last, first = before.rstrip(EDGES).split(), after.lstrip(EDGES).split()
        if not last or not first or last[-1].lower() != first[0].lower():
            return False
    return True


@check("words:paragraph_last_first")
def paragraphs_end_as_they_begin(response: str) -> bool:
    """Each line ends with the word that it begins with."""
    lines = [line.strip().lower().strip(EDGES).split() for line in response.split("\n")]
    return all(words[0] == words[-1] for words in lines if words)


@check("words:no_consecutive")
def no_consecutive_initials(response: str) -> bool:
    """No two words in a row begin with the same letter."""
    words = without_punctuation(response.lower()).split()
    return all(a[0] != b[0] for a, b in itertools.pairwise(words))


@check("words:keywords_specific_position")
def keyword_at(response: str, keyword: str, n: int, m: int) -> bool:
    """The m-th word of the n-th sentence is the keyword."""
    found = sentences(response)
    if not 1 <= n <= len(found):
        return False
    words = [token for token in word_tokens(found[n - 1]) if any(character.isalnum() for character in token)]
    return 1 <= m <= len(words) and words[m - 1].lower() == keyword.lower()


@check("words:words_position")
def second_and_last_but_one(response: str, keyword: str) -> bool:
    """The second word and the last but one are the keyword; a mark at the end does not count."""
    tokens = [token.lower() for token in word_tokens(response)]
    if tokens and tokens[-1] in PUNCTUATION:
        tokens.pop()
    return len(tokens) >= 2 and tokens[1] == tokens[-2] == keyword.lower()


@check("sentence:alliteration_increment")
def growing_alliteration(response: str) -> bool:
    """Each sentence has more alliterating words than the one before."""
    before = -1
    for sentence in sentences(response):
        words = [word for raw in sentence.lower().split() if (word := raw.lstrip(EDGES))]
        runs = [len(list(run)) for _, run in itertools.groupby(words, key=lambda word: word[0])]
        count = sum(length for length in runs if length > 1)
        if count <= before:
            return False
        before = count
    return True


@check("sentence:increment")
def growing_sentences(response: str, small_n: int) -> bool:
    """Each sentence has exactly so many words more than the one before."""
    counts = [len(without_punctuation(sentence).split()) for sentence in sentences(response)]
    return all(after == before + small_n for before, after in itertools.pairwise(counts))


@check("sentence:keyword")
def keyword_in_sentence(response: str, word: str, N: int) -> bool:
    """The N-th sentence has the keyword as a whole word."""
    found = sentences(response)
    return 1 <= N <= len(found) and re.search(rf"\b{re.escape(word)}\b", found[N - 1], re.IGNORECASE) is not None
