"""Which tokens of a micro-batch a context-parallel rank computes, and what its attention reads.

What lives here: index arithmetic, in NumPy. What does not: packing and shared prompts (`packing.py`, `sharing.py`),
tensors and communication (`spec.py`, `model.py`).

The columns of each attention rectangle are cut into `2 n` chunks for n ranks; rank r has chunks r and `2 n - 1 - r`,
whose causal attention together costs the same on every rank. A rank computes the tokens of its chunks and reads the
keys and values of all ranks, which are gathered in the order of the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relax_engine.backends.megatron.sharing import Compact


@dataclass(frozen=True, slots=True)
class Piece:
    """Causal attention over `rows` sequences: the last `queries` of `keys` columns attend to what is before them."""

    rows: int
    queries: int
    keys: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one context-parallel rank computes of a micro-batch; all of it where there is one rank.

    Attributes:
        tokens, positions: `[total]`, padded with zeros to the same total on every rank; positions of media
            `[total, 3]`.
        real: how many of them are not padding.
        sources: int64 `[total]`, the place of each among the tokens of the micro-batch's rows; -1 for padding.
        pieces: the attentions; their cells lie end to end.
        query_cells: int64 `[sum of rows * queries]`, the rank's token in each cell (any where another rank has it).
        key_cells: int64 `[sum of rows * keys]`, the gathered token in each cell.
        output_cells: int64 `[total]`, one query cell of each token.
        predictors, targets: int64 `[r]`, the rank's part of the response tokens: the token that predicts each, itself.
        chosen: int64 `[r]`, which of the `[R]` response tokens these are.
        order: int64 `[R]`, where each response token stands when the ranks' parts, each padded to `width`, lie end to
            end; None where there is one rank.
        width: the largest r of all ranks.
        features: int64 `[total]`, which media feature stands in the place of each token, -1 for text; None without
            media.
    """

    tokens: np.ndarray
    positions: np.ndarray
    real: int
    sources: np.ndarray
    pieces: tuple[Piece, ...]
    query_cells: np.ndarray
    key_cells: np.ndarray
    output_cells: np.ndarray
    predictors: np.ndarray
    targets: np.ndarray
    chosen: np.ndarray
    order: np.ndarray | None
    width: int
    features: np.ndarray | None = None


def share(compact: Compact, rank: int = 0, size: int = 1, *, multiple_of: int = 1) -> Share:
    """The share of context-parallel rank `rank` of `size`; its total is a multiple of `multiple_of` if size > 1."""
    if size == 1:
        return _whole(compact)
    owner = _owners(compact, size)
    place = np.empty(len(owner), np.int64)
    for each in range(size):
        mine = np.flatnonzero(owner == each)
        place[mine] = np.arange(len(mine))
    total = -(-int(np.bincount(owner, minlength=size).max()) // multiple_of) * multiple_of
    mine = np.flatnonzero(owner == rank)
    padding = (0, total - len(mine))
    pieces, queries, keys, cell_of = _pieces(compact, rank, size, owner, place, total)
    by = owner[compact.predictors]
    chosen = np.flatnonzero(by == rank)
    width = int(np.bincount(by, minlength=size).max()) if len(by) else 0
    order = np.empty(len(by), np.int64)
    for each in range(size):
        theirs = np.flatnonzero(by == each)
        order[theirs] = each * width + np.arange(len(theirs))
    return Share(
        tokens=np.pad(compact.tokens[mine], padding),
        positions=np.pad(compact.positions[mine], [padding, *[(0, 0)] * (compact.positions.ndim - 1)]),
        features=None if compact.features is None else np.pad(compact.features[mine], padding, constant_values=-1),
        real=int(np.count_nonzero(mine < compact.real)),
        sources=np.pad(compact.sources[mine], padding, constant_values=-1),
        pieces=pieces,
        query_cells=queries,
        key_cells=keys,
        output_cells=np.pad(cell_of[compact.to_packed[mine]], padding),
        predictors=place[compact.predictors[chosen]],
        targets=compact.targets[chosen],
        chosen=chosen,
        order=order,
        width=width,
    )


def _whole(compact: Compact) -> Share:
    return Share(
        tokens=compact.tokens,
        positions=compact.positions,
        features=compact.features,
        real=compact.real,
        sources=compact.sources,
        pieces=tuple(Piece(bucket.rows, bucket.length, bucket.length) for bucket in compact.buckets),
        query_cells=compact.to_padded,
        key_cells=compact.to_padded,
        output_cells=compact.to_packed,
        predictors=compact.predictors,
        targets=compact.targets,
        chosen=np.arange(len(compact.targets)),
        order=None,
        width=len(compact.targets),
    )


def _chunk(length: int, size: int) -> int:
    """Columns of one of the `2 size` chunks; the last ones may be shorter or empty."""
    return -(-length // (2 * size))


def _owners(compact: Compact, size: int) -> np.ndarray:
    """The rank that computes each token, by the chunk of the token's cell."""
    of_cells = []
    for bucket in compact.buckets:
        chunk = np.arange(bucket.length) // _chunk(bucket.length, size)
        of_cells.append(np.tile(np.where(chunk < size, chunk, 2 * size - 1 - chunk), bucket.rows))
    return np.concatenate(of_cells)[compact.to_packed]


def _pieces(
    compact: Compact, rank: int, size: int, owner: np.ndarray, place: np.ndarray, total: int
) -> tuple[tuple[Piece, ...], np.ndarray, np.ndarray, np.ndarray]:
    """The rank's attentions, their query and key cells, and the query cell of each cell of the whole micro-batch."""
    pieces, queries, keys = [], [], []
    gathered = owner * total + place
    cell_of = np.zeros(len(compact.to_padded), np.int64)
    base = used = 0
    for bucket in compact.buckets:
        rows, length = bucket.rows, bucket.length
        tokens = compact.to_padded[base : base + rows * length].reshape(rows, length)
        step = _chunk(length, size)
        for chunk in (rank, 2 * size - 1 - rank):
            first, end = chunk * step, (chunk + 1) * step
            if first >= length:
                continue
            inside = tokens[:, np.minimum(np.arange(first, end), length - 1)]
            queries.append(np.where(owner[inside] == rank, place[inside], 0).ravel())
            keys.append(gathered[tokens[:, np.minimum(np.arange(end), length - 1)]].ravel())
            pieces.append(Piece(rows, step, end))
            columns = np.arange(first, min(end, length))
            cells = base + np.arange(rows)[:, None] * length + columns
            cell_of[cells] = used + np.arange(rows)[:, None] * step + (columns - first)
            used += rows * step
        base += rows * length
    if not pieces:  # one idle attention, so that the gather's gradient is exchanged on every rank
        pieces, queries, keys = [Piece(1, 1, 1)], [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
    return tuple(pieces), np.concatenate(queries), np.concatenate(keys), cell_of
