"""`--rm-type f1`: overlap of words with the best of the right answers, as SQuAD measures it (arXiv 1606.05250)."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Any

from relax_engine.rewards.extract import after_thoughts, empty_label, last_answer, right_answers
from relax_engine.types import Sample

WHOLE_ANSWERS = frozenset({"yes", "no", "noanswer"})

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
check_label = empty_label


def f1_reward(args: Any, sample: Sample) -> float:
    """The largest F1 over the right answers, in [0, 1]; the response's last `<answer>`, if any, is compared."""
    response = last_answer(sample.response)
    prediction = after_thoughts(sample.response) if response is None else response
    return max((f1_score(prediction, answer)[0] for answer in right_answers(sample)), default=0.0)


def f1_score(prediction: str, answer: str) -> tuple[float, float, float]:
    """F1, precision and recall of the words of two texts, normalised.

    Where one of them is `yes`, `no` or `noanswer`, nothing but the same word scores. Nothing scores against a text
    that is empty after normalisation.
    """
    prediction, answer = normalize_text(prediction), normalize_text(answer)
    if prediction != answer and not WHOLE_ANSWERS.isdisjoint((prediction, answer)):
        return 0.0, 0.0, 0.0
    predicted, expected = prediction.split(), answer.split()
    common = sum((Counter(predicted) & Counter(expected)).values())
    if not common:
        return 0.0, 0.0, 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall), precision, recall


def normalize_text(text: str) -> str:
    """Lower case, without punctuation, articles and surplus white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())
