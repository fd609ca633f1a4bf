"""The lag of samples as the trainer sees it."""

import numpy as np

from relax_engine.rollout.staleness import split_stale
from relax_engine.stream.columns import Column, ColumnBatch


def batch(first: list[int], groups: list[int]) -> ColumnBatch:
    return ColumnBatch(
        {
            "first_version": Column.fixed(np.array(first, np.int32)),
            "group_index": Column.fixed(np.array(groups, np.int64)),
        }
    )


def test_a_group_with_one_row_beyond_the_bound_leaves_as_a_whole() -> None:
    kept, dropped, metrics = split_stale(batch([5, 2, 3, 5, -1, 4], [0, 0, 1, 1, 2, 2]), version=5, bound=2)
    assert dropped == 2
    assert kept["group_index"].values.tolist() == [1, 1, 2, 2]
    assert metrics == {
        "rollout/staleness/count/0": 2.0,
        "rollout/staleness/count/1": 1.0,
        "rollout/staleness/count/2": 1.0,
        "rollout/staleness/avg": 0.75,
        "rollout/staleness/max": 2.0,
        "rollout/staleness/min": 0.0,
    }


def test_nothing_left_has_no_lag() -> None:
    kept, dropped, metrics = split_stale(batch([0, 0], [0, 0]), version=1, bound=0)
    assert (kept.num_rows, dropped, metrics) == (0, 2, {})


def test_a_batch_within_the_bound_is_not_copied() -> None:
    rows = batch([1, 2], [0, 1])
    assert split_stale(rows, version=2, bound=1)[0] is rows
