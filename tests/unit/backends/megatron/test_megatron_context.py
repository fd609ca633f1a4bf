"""The shares of context-parallel ranks: together every token once, and the attention of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from relax_engine.backends.megatron.context import Share, share
from relax_engine.backends.megatron.packing import pack
from relax_engine.backends.megatron.sharing import Compact, compact
from relax_engine.stream.columns import Column, ColumnBatch

PROMPT = [1, 2, 3, 4]
ROWS = [
    (PROMPT, [11, 12, 13, 14, 15, 16, 17, 18, 19]),
    (PROMPT, [21]),
    (PROMPT, [31, 32, 33, 34, 35, 36]),
    ([5], [41, 42, 43]),
    ([6, 7], []),
]


def _packed(rows: list[tuple[list[int], list[int]]]) -> Compact:
    return compact(
        pack(
            ColumnBatch(
                {
                    "tokens": Column.ragged([np.array(prompt + response) for prompt, response in rows], np.int32),
                    "response_lengths": Column.fixed([len(response) for _, response in rows], np.int32),
                }
            )
        )
    )


def _attend(own: Share, query: np.ndarray, gathered: np.ndarray) -> np.ndarray:
    """Of each of the rank's tokens query x key, summed over what it sees: any wrong, missing or doubled key shows."""
    cells, q_start, k_start = [], 0, 0
    for piece in own.pieces:
        q_end, k_end = q_start + piece.rows * piece.queries, k_start + piece.rows * piece.keys
        q = query[own.query_cells[q_start:q_end]].reshape(piece.rows, piece.queries)
        k = gathered[own.key_cells[k_start:k_end]].reshape(piece.rows, piece.keys)
        seen = np.cumsum(k, axis=1)[:, piece.keys - piece.queries :]
        cells.append((q * seen).ravel())
        q_start, k_start = q_end, k_end
    return np.concatenate(cells)[own.output_cells]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[4:]], ids=["shared-prompts", "one-row", "two-tokens"])
def test_ranks_together_compute_what_one_does(size: int, rows: list[tuple[list[int], list[int]]]) -> None:
    whole = _packed(rows)
    alone = share(whole)
    numbers = np.random.default_rng(0).integers(1, 100, 50)
    values = np.arange(len(whole.tokens)) * 7 + numbers[whole.tokens % 50]  # a number for each computed token
    expected = _attend(alone, values, values)

    shares = [share(whole, rank, size, multiple_of=2) for rank in range(size)]
    assert {len(own.tokens) for own in shares} == {len(shares[0].tokens)}
    assert len(shares[0].tokens) % 2 == 0
    assert sum(own.real for own in shares) == len(whole.tokens)
    where = {(int(t), int(p)): i for i, (t, p) in enumerate(zip(whole.tokens, whole.positions, strict=True))}
    mine = [[where[int(t), int(p)] for t, p in zip(o.tokens[: o.real], o.positions, strict=False)] for o in shares]
    assert sorted(i for own in mine for i in own) == list(range(len(whole.tokens)))

    total = len(shares[0].tokens)
    local = [np.pad(values[own], (0, total - len(own))) for own in mine]
    gathered = np.concatenate(local)
    for own, query, index in zip(shares, local, mine, strict=True):
        assert (_attend(own, query, gathered)[: own.real] == expected[index]).all()
        assert (own.tokens[own.predictors] == whole.tokens[whole.predictors[own.chosen]]).all()
        assert (own.targets == whole.targets[own.chosen]).all()
    parts = np.concatenate([np.pad(own.targets, (0, own.width - len(own.targets))) for own in shares])
    assert (parts[shares[0].order] == whole.targets).all()


def test_long_sequences_cost_every_rank_the_same() -> None:
    whole = _packed([([9], list(range(100, 163)))])
    costs = [sum(piece.queries * piece.keys for piece in share(whole, rank, 4).pieces) for rank in range(4)]
    assert len(set(costs)) == 1
