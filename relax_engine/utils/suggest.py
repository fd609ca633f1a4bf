"""The nearest known name for a typo."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that looks most like `name`, or None when none comes close.

    A candidate that only has a prefix more (`rollout_top_p` for `top_p`) counts as closest.
    """
    names = list(candidates)
    longer = [candidate for candidate in names if candidate.endswith(f"_{name}")]
    matches = longer or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return matches[0] if matches else None
