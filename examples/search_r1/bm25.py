"""Okapi BM25 over a few thousand short texts, in memory.

What lives here: ranking. What does not: what is indexed (`corpus.jsonl`), and the tool (`env_search_r1`).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


class BM25:
    """An inverted index of `texts`.

    The score of a text for a query (Robertson and Zaragoza 2009, eq. 3.15, with Lucene's idf, which is never negative)
    is the sum over the query's words of `idf * n (k1 + 1) / (n + k1 (1 - b + b length / mean length))`, where `n` is
    how often the text has the word, and `idf = log(1 + (N - d + 0.5) / (d + 0.5))` for a word in `d` of `N` texts.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        self._k1 = k1
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths = []
        for index, text in enumerate(texts):
            words = _words(text)
            lengths.append(len(words))
            for word, count in Counter(words).items():
                self._postings[word].append((index, count))
        self._count = len(texts)
        mean = sum(lengths) / len(lengths)
        self._saturation = [k1 * (1 - b + b * length / mean) for length in lengths]

    def search(self, query: str, top_k: int) -> list[tuple[int, float]]:
        """Index and score of the best `top_k` texts that share a word with the query, best first; ties by index."""
        scores: dict[int, float] = defaultdict(float)
        for word in _words(query):
            found = self._postings.get(word, ())
            idf = math.log1p((self._count - len(found) + 0.5) / (len(found) + 0.5))
            for index, count in found:
                scores[index] += idf * count * (self._k1 + 1) / (count + self._saturation[index])
        return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))[:top_k]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
