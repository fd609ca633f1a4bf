"""From tokens to attention's rectangles with heads first, and back: the row indices.

What lives here: index arithmetic in NumPy. What does not: which tokens stand in which rectangle (`packing.py`,
`sharing.py`).

Attention works on `[rows, heads, length, d]`, all other layers on `[tokens, heads, d]`. Selecting rows of `d` numbers
pads, repeats shared prompts and puts heads first in one pass.
"""

from __future__ import annotations

import numpy as np

from relax_engine.backends.megatron.sharing import Compact


def token_of_cell(compact: Compact, heads: int) -> np.ndarray:
    """For each row of all `[rows, heads, length, d]`, end to end, its row in `[tokens, heads, d]`; int64."""
    parts, start = [], 0
    for bucket in compact.buckets:
        end = start + bucket.rows * bucket.length
        tokens = compact.to_padded[start:end].reshape(bucket.rows, 1, bucket.length)
        parts.append((tokens * heads + np.arange(heads)[:, None]).ravel())
        start = end
    return np.concatenate(parts)


def cell_of_token(compact: Compact, heads: int) -> np.ndarray:
    """For each row of `[tokens, heads, d]` one of its rows in all `[rows, heads, length, d]`; int64."""
    parts, start = [], 0
    for bucket in compact.buckets:
        cells = start + np.arange(bucket.rows * heads * bucket.length)
        parts.append(cells.reshape(bucket.rows, heads, bucket.length).transpose(0, 2, 1).reshape(-1, heads))
        start += len(cells)
    return np.concatenate(parts)[compact.to_packed].ravel()
