"""Sets of row numbers as sorted, disjoint, half-open ranges.

Bookkeeping is per batch, not per row: a partition filled and read in order is one range, whatever
its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Span = tuple[int, int]
Spans = tuple[Span, ...]


def as_spans(rows: range | np.ndarray | Sequence[int] | Spans) -> Spans:
    """Row numbers in any accepted form as spans.

    Raises:
        ValueError: the numbers are not strictly ascending (a batch is stored in row order).
    """
    if isinstance(rows, range):
        if rows.step != 1:
            raise ValueError(f"rows {rows} must have step 1")
        return ((rows.start, rows.stop),) if rows else ()
    if len(rows) == 0:
        return ()
    if isinstance(rows[0], tuple):
        spans = tuple((int(start), int(stop)) for start, stop in rows)  # type: ignore[misc]
        bounds = [bound for span in spans for bound in span]
        if bounds != sorted(bounds) or any(start == stop for start, stop in spans):
            raise ValueError(f"spans {spans} must be non-empty, ascending and disjoint")
        return _merge(spans)
    index = np.asarray(rows, np.int64)
    steps = np.diff(index)
    if (steps < 1).any():
        raise ValueError("row numbers must be strictly ascending; sort the batch by row first")
    cuts = np.flatnonzero(steps != 1) + 1
    starts = index[np.concatenate(([0], cuts))]
    stops = index[np.concatenate((cuts - 1, [len(index) - 1]))] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def count(spans: Spans) -> int:
    """Number of rows."""
    return sum(stop - start for start, stop in spans)


def union(left: Spans, right: Spans) -> Spans:
    """Rows in either set; appending at the end costs nothing."""
    if left and right and left[-1][1] <= right[0][0]:
        return left[:-1] + _merge((left[-1], *right))
    return _merge(sorted((*left, *right)))


def intersect(left: Spans, right: Spans) -> Spans:
    """Rows in both sets."""
    result: list[Span] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, stop = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < stop:
            result.append((start, stop))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(result)


def subtract(left: Spans, right: Spans) -> Spans:
    """Rows of `left` that are not in `right`."""
    result: list[Span] = []
    j = 0
    for start, stop in left:
        while j < len(right) and right[j][1] <= start:
            j += 1
        k = j
        while k < len(right) and right[k][0] < stop:
            if start < right[k][0]:
                result.append((start, right[k][0]))
            start = max(start, right[k][1])
            k += 1
        if start < stop:
            result.append((start, stop))
    return tuple(result)


def describe(spans: Spans, limit: int = 4) -> str:
    """`0-63, 128-191 (128 rows)`, for messages."""
    parts = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in spans[:limit]]
    more = f", and {len(spans) - limit} more ranges" if len(spans) > limit else ""
    return f"{', '.join(parts) or 'none'}{more} ({count(spans)} rows)"


def _merge(ordered: Iterable[Span]) -> Spans:
    result: list[Span] = []
    for start, stop in ordered:
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return tuple(result)
