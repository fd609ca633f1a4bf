"""The last box, compared as normalised text."""

from .normalise import normalise


def last_box(text):
    """The content of the last `\\boxed{...}`, or None."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for index in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + 7 : index]
    return None


def compute_score(solution_str, ground_truth):
    """1.0 if both normalise to the same text."""
    answer = last_box(solution_str)
    return 0.0 if answer is None else float(normalise(answer) == normalise(ground_truth))
