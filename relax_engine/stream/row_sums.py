"""Sums and means of a ragged column's rows, without a loop over rows."""

from __future__ import annotations

import numpy as np

from relax_engine.stream.columns import Column


def row_sums(values: np.ndarray, column: Column) -> np.ndarray:
    """float64 `[rows]`: sums of `values` (compact, one an element of `column`) over each row of `column`."""
    assert column.offsets is not None, "a ragged column"
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    sums: np.ndarray = total[column.offsets[1:]] - total[column.offsets[:-1]]
    return sums


def row_means(values: np.ndarray, column: Column, weights: np.ndarray | None = None) -> np.ndarray:
    """float32 `[rows]`: weighted mean of each row's values; NaN where the weights are all 0."""
    weights = np.ones(len(values)) if weights is None else weights.astype(np.float64)
    weighted = np.where(weights != 0, values * weights, 0.0)
    with np.errstate(invalid="ignore"):
        means: np.ndarray = row_sums(weighted, column) / row_sums(weights, column)
    return means.astype(np.float32)
