"""Near-duplicates by MinHash: prompts of which most 5-character pieces are the same.

Source: Broder, "On the resemblance and containment of documents" (1997); candidates by banding as in Leskovec,
Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3: 16 bands of 4 rows find a pair of similarity 0.8 with a
probability of 0.9998. The similarity reported is the share of equal signature entries, an estimate of the Jaccard
index with a standard error of at most 0.0625.
"""

from __future__ import annotations

import numpy as np

from data_prep.checks.prompts import normal

PIECE = 5
HASHES, BANDS = 64, 16
_LONGEST = 20_000  # characters of a prompt that count

_random = np.random.default_rng(20261130)
_FACTORS = _random.integers(1, 2**63, HASHES, np.uint64) | np.uint64(1)
_OFFSETS = _random.integers(0, 2**63, HASHES, np.uint64)
_POWERS = np.array([31**power for power in range(PIECE)], np.uint64)


def signature(text: str) -> np.ndarray:
    """MinHash of a text's pieces, uint32 `[HASHES]`."""
    codes = np.frombuffer(normal(text)[:_LONGEST].encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    if len(codes) < PIECE:
        codes = np.concatenate([codes, np.zeros(PIECE - len(codes), np.uint64)])
    pieces = np.unique(np.lib.stride_tricks.sliding_window_view(codes, PIECE) @ _POWERS)
    mixed = (pieces ^ (pieces >> np.uint64(15))) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed[:, None] * _FACTORS + _OFFSETS) >> np.uint64(32)).min(axis=0).astype(np.uint32)


def nearest(signatures: np.ndarray, others: np.ndarray | None, threshold: float) -> list[tuple[int, int, float]]:
    """Rows that resemble another: `(row, other, similarity)`, for each row the most similar one found.

    Args:
        signatures: uint32 `[rows, HASHES]`.
        others: what to compare with, uint32 `[others, HASHES]`; None compares each row with the rows before it.
        threshold: lowest similarity that counts.
    """
    rows = np.concatenate([signatures if others is None else others, signatures]) if others is not None else signatures
    first = 0 if others is None else len(others)
    best_row = np.full(len(rows), -1)
    best = np.zeros(len(rows))
    width = HASHES // BANDS
    for band in range(BANDS):
        keys = np.ascontiguousarray(rows[:, band * width : (band + 1) * width]).view(np.dtype((np.void, width * 4)))
        _, inverse = np.unique(keys.ravel(), return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.flatnonzero(np.diff(inverse[order], prepend=-1))
        leader = np.repeat(order[starts], np.diff(starts, append=len(order)))
        found = (order >= first) & (order != leader) & ((leader < first) | (others is None))
        candidates, leaders = order[found], leader[found]
        similarity = (rows[candidates] == rows[leaders]).mean(axis=1)
        better = (similarity >= threshold) & (similarity > best[candidates])
        best[candidates[better]], best_row[candidates[better]] = similarity[better], leaders[better]
    hits = np.flatnonzero(best_row >= 0)
    return [(int(row) - first, int(best_row[row]), round(float(best[row]), 3)) for row in hits]
