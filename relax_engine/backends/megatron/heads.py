"""From tokens to attention's rectangles with heads first, and back: the row indices.

What lives here: index arithmetic in NumPy. What does not: which tokens stand in which rectangle (`packing.py`,
`sharing.py`, `context.py`).

Attention works on `[rows, heads, length, d]`, all other layers on `[tokens, heads, d]`. Selecting rows of `d` numbers
pads, repeats shared prompts and puts heads first in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Rectangle = tuple[int, int]
"""Rows and length."""


def token_of_cell(rectangles: Sequence[Rectangle], cells: np.ndarray, heads: int) -> np.ndarray:
    """For each row of all `[rows, heads, length, d]`, end to end, its row in `[tokens, heads, d]`; int64.

    `cells` are the tokens of all rectangles' cells `[rows, length]`, end to end.
    """
    parts, start = [], 0
    for rows, length in rectangles:
        end = start + rows * length
        tokens = cells[start:end].reshape(rows, 1, length)
        parts.append((tokens * heads + np.arange(heads)[:, None]).ravel())
        start = end
    return np.concatenate(parts)


def cell_of_token(rectangles: Sequence[Rectangle], cells: np.ndarray, heads: int) -> np.ndarray:
    """For each row of `[tokens, heads, d]` one of its rows in all `[rows, heads, length, d]`; int64.

    `cells` is one cell of each token, in all `[rows, length]`.
    """
    parts, start = [], 0
    for rows, length in rectangles:
        numbers = start + np.arange(rows * heads * length)
        parts.append(numbers.reshape(rows, heads, length).transpose(0, 2, 1).reshape(-1, heads))
        start += len(numbers)
    return np.concatenate(parts)[cells].ravel()
