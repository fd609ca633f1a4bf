"""The number behind the last `####`."""

import re

_TAIL = 300  # characters


def _answer(text, method):
    if method == "strict":
        found = re.findall(r"#### (-?[0-9.,]+)", text[-_TAIL:])
        return found[-1].replace(",", "").replace("$", "") if found else None
    numbers = [word for word in re.findall(r"-?[0-9.,]+", text) if word not in ("", ".")]
    return numbers[-1] if numbers else None


def compute_score(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):
    """`score` for the right number, `format_score` for another one."""
    answer = _answer(solution_str, method)
    if answer is None:
        return 0
    return score if answer == ground_truth else format_score
