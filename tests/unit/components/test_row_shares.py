"""Which rows each data-parallel rank gets."""

import numpy as np
import pytest

from relax_engine.components.train_rank import row_shares


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize(("rows", "shares"), [(8, 1), (8, 2), (9, 4), (3, 4), (0, 2)])
def test_every_row_goes_to_one_rank(rows: int, shares: int, balance: bool) -> None:
    counts = np.random.default_rng(rows).integers(1, 100, rows)
    parts = row_shares(counts, shares, balance=balance)
    assert len(parts) == shares
    assert sorted(row for part in parts for row in part) == list(range(rows))
    assert all(part == sorted(part) for part in parts)
    assert parts == row_shares(counts, shares, balance=balance)


def test_without_balancing_ranks_get_consecutive_rows() -> None:
    assert row_shares(np.array([100, 1, 1, 1, 1]), 2, balance=False) == [[0, 1, 2], [3, 4]]


def test_balancing_evens_out_tokens() -> None:
    assert row_shares(np.array([9, 1, 1, 1, 6]), 2, balance=True) == [[0], [1, 2, 3, 4]]
    counts = np.random.default_rng(0).lognormal(5, 1, 256).astype(int)
    loads = [counts[part].sum() for part in row_shares(counts, 4, balance=True)]
    # Longest-first to the lightest is within 4/3 of the optimum, and far closer with many rows (Graham 1969).
    assert max(loads) <= 1.01 * counts.sum() / 4
    unbalanced = [counts[part].sum() for part in row_shares(counts, 4, balance=False)]
    assert max(loads) < max(unbalanced)


def test_equal_rows_are_dealt_in_order() -> None:
    assert row_shares(np.full(6, 5), 3, balance=True) == [[0, 3], [1, 4], [2, 5]]
