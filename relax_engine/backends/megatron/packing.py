"""From rows of a batch to micro-batches of packed sequences.

What lives here: how rows are divided under a token budget, and the index arithmetic of one packed
micro-batch. Pure NumPy. What does not: tensors, models, process groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from relax_engine.stream.columns import ColumnBatch

Rows = np.ndarray

MIN_FILL = 0.75


def plan_micro_batches(
    lengths: np.ndarray,
    *,
    max_tokens: int | None,
    micro_batch_size: int,
    agree: Callable[[int], int] = lambda count: count,
) -> list[Rows]:
    """Divide rows into micro-batches of consecutive rows.

    Args:
        lengths: tokens per row, `[rows]`.
        max_tokens: token budget of a micro-batch; a longer row gets one to itself. None: fixed size.
        micro_batch_size: rows per micro-batch when there is no token budget.
        agree: maps this rank's number of micro-batches to the number all data-parallel ranks make.

    Returns:
        Row indices of each micro-batch. Extra micro-batches come from halving the heaviest ones, and
        are empty when there are not enough rows. The same input gives the same answer.
    """
    parts = _by_tokens(lengths, max_tokens) if max_tokens is not None else _by_count(len(lengths), micro_batch_size)
    wanted = agree(len(parts))
    while len(parts) < wanted:
        splittable = [i for i, part in enumerate(parts) if len(part) > 1]
        if not splittable:
            parts.append(np.empty(0, np.int64))
            continue
        heaviest = max(splittable, key=lambda i: (int(lengths[parts[i]].sum()), -i))
        part = parts[heaviest]
        parts[heaviest : heaviest + 1] = _halves(part, lengths[part])
    return parts


def _by_count(rows: int, size: int) -> list[Rows]:
    if size < 1:
        raise ValueError(f"micro_batch_size must be at least 1, got {size}")
    return [np.arange(start, min(start + size, rows)) for start in range(0, rows, size)]


def _by_tokens(lengths: np.ndarray, budget: int) -> list[Rows]:
    if budget < 1:
        raise ValueError(f"max_tokens must be at least 1, got {budget}")
    parts: list[Rows] = []
    start, used = 0, 0
    for row, length in enumerate(lengths.tolist()):
        if row > start and used + length > budget:
            parts.append(np.arange(start, row))
            start, used = row, 0
        used += length
    if len(lengths) > start:
        parts.append(np.arange(start, len(lengths)))
    return parts


def _halves(part: Rows, lengths: np.ndarray) -> tuple[Rows, Rows]:
    before = np.cumsum(lengths)[:-1]
    cut = int(np.argmin(np.abs(2 * before - lengths.sum()))) + 1
    return part[:cut], part[cut:]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences of similar length, padded on the right to a rectangle `[rows, length]`."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Index arithmetic of one micro-batch whose sequences lie end to end.

    Attributes:
        tokens: int64 `[total]`, the sequences end to end.
        real: how many of them are the batch's; placeholders follow.
        cu_lengths: int32 `[sequences + 1]`, their boundaries.
        predictors: int64 `[R]`, for each response token the index of the token before it, whose
            output predicts it.
        targets: int64 `[R]`, the response tokens.
        response_offsets: int64 `[rows + 1]`, boundaries of the rows inside `[R]`.
        buckets: rectangles that attention works on.
        to_padded: int64 `[sum of rectangle sizes]`, the packed index behind each rectangle cell.
        to_packed: int64 `[total]`, the rectangle cell of each packed token.
        positions: `[total]`, of each token in its sequence, from 0; three numbers each, `[total, 3]`, with media.
        features: int64 `[total]`, which media feature stands in the place of each token, -1 for text; None without
            media.
        identities: of each row, the same where media are; None without.
    """

    tokens: np.ndarray
    real: int
    cu_lengths: np.ndarray
    predictors: np.ndarray
    targets: np.ndarray
    response_offsets: np.ndarray
    buckets: tuple[Bucket, ...]
    to_padded: np.ndarray
    to_packed: np.ndarray
    positions: np.ndarray
    features: np.ndarray | None = None
    identities: tuple[bytes, ...] | None = None


def pack(batch: ColumnBatch | None, *, multiple_of: int = 1) -> Packing:
    """Pack the rows of `batch` (columns `tokens`, `response_lengths`).

    `None` packs one placeholder token and no response: the micro-batch of a rank that has run out of
    rows. The total is rounded up to `multiple_of` with one more sequence of placeholder tokens.

    Raises:
        ValueError: a row without a prompt token, whose first response token nothing predicts.
    """
    if batch is None:
        tokens, lengths, responses = np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int64)
    else:
        column = batch["tokens"]
        tokens, lengths = column.values.astype(np.int64), column.lengths
        responses = batch["response_lengths"].values.astype(np.int64)
        bad = np.flatnonzero((responses >= lengths) | (responses < 0))
        if len(bad):
            row = int(bad[0])
            raise ValueError(
                f"row {row} of the batch has {lengths[row]} tokens and a response of {responses[row]}: "
                "a response needs at least one prompt token before it"
            )
    response_offsets = np.concatenate([[0], np.cumsum(responses)])
    ends = np.cumsum(lengths)
    within = np.arange(response_offsets[-1]) - np.repeat(response_offsets[:-1], responses)
    positions = np.repeat(ends - responses, responses) + within
    targets = tokens[positions]
    real = 0 if batch is None else len(tokens)
    missing = -len(tokens) % multiple_of
    if missing:
        tokens = np.concatenate([tokens, np.zeros(missing, np.int64)])
        lengths = np.append(lengths, missing)
    buckets, to_padded, to_packed = _rectangles(lengths)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return Packing(
        tokens=tokens,
        real=real,
        cu_lengths=bounds.astype(np.int32),
        predictors=positions - 1,
        targets=targets,
        response_offsets=response_offsets,
        buckets=buckets,
        to_padded=to_padded,
        to_packed=to_packed,
        positions=np.arange(len(tokens)) - np.repeat(bounds[:-1], lengths),
    )


def _rectangles(lengths: np.ndarray) -> tuple[tuple[Bucket, ...], np.ndarray, np.ndarray]:
    """Group sequences, longest first, so that each fills at least `MIN_FILL` of its rectangle's width."""
    starts = np.cumsum(lengths) - lengths
    to_packed = np.empty(int(lengths.sum()), np.int64)
    order = np.argsort(-lengths, kind="stable")
    if lengths[order[-1]] >= MIN_FILL * lengths[order[0]]:
        order = np.arange(len(lengths))  # one rectangle: keep the rows where they are
    buckets: list[Bucket] = []
    cells: list[np.ndarray] = []
    first = base = 0
    while first < len(order):
        width = int(lengths[order[first:]].max())
        last = first + int(np.count_nonzero(lengths[order[first:]] >= MIN_FILL * width))
        rows = order[first:last]
        offsets = np.arange(width)
        cells.append((starts[rows, None] + np.minimum(offsets, lengths[rows, None] - 1)).ravel())
        for slot, row in enumerate(rows.tolist()):
            begin, count = starts[row], lengths[row]
            to_packed[begin : begin + count] = base + slot * width + np.arange(count)
        buckets.append(Bucket(len(rows), width))
        base += len(rows) * width
        first = last
    return tuple(buckets), np.concatenate(cells), to_packed
