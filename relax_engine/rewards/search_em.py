"""`--rm-type search_em`: the answer of a search agent is one of the right ones (Search-R1, arXiv 2503.09516)."""

from __future__ import annotations

from typing import Any, Literal

from relax_engine.rewards.extract import empty_label, last_answer, right_answers
from relax_engine.rewards.f1 import normalize_text
from relax_engine.types import Sample

check_label = empty_label


def search_em_reward(
    args: Any, sample: Sample, *, match: Literal["exact", "substring"] = "exact", format_score: float = 0.0
) -> float:
    """1.0 if the last `<answer>...</answer>` is a right answer after normalisation, else `format_score`.

    Without an answer tag the score is 0.0. With `match="substring"` the answer may say more than a right one.

    Raises:
        ValueError: another kind of match.
    """
    if match not in ("exact", "substring"):
        raise ValueError(f"search_em match {match!r}: write 'exact' or 'substring'")
    answer = last_answer(sample.response)
    if answer is None:
        return 0.0
    found = normalize_text(answer)
    rights = [right for right in map(normalize_text, right_answers(sample)) if right]
    correct = found in rights if match == "exact" else any(f" {right} " in f" {found} " for right in rights)
    return 1.0 if correct else format_score
