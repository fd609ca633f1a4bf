"""The lag of samples as the trainer sees it."""

import numpy as np
import pytest

from relax_engine.rollout.staleness import StalenessCheck
from relax_engine.stream.columns import Column, ColumnBatch


def batch(first: list[int], groups: list[int], last: list[int] | None = None) -> ColumnBatch:
    return ColumnBatch(
        {
            "first_version": Column.fixed(np.array(first, np.int32)),
            "last_version": Column.fixed(np.array(first if last is None else last, np.int32)),
            "group_index": Column.fixed(np.array(groups, np.int64)),
        }
    )


def test_a_group_with_one_row_beyond_the_bound_leaves_as_a_whole() -> None:
    check = StalenessCheck(version=5, bound=2)
    kept = check.keep(batch([5, 2, 3, 5, -1, 4], [0, 0, 1, 1, 2, 2]))
    assert check.dropped == 2
    assert kept["group_index"].values.tolist() == [1, 1, 2, 2]
    assert check.metrics() == {
        "rollout/staleness/count/0": 2.0,
        "rollout/staleness/count/1": 1.0,
        "rollout/staleness/count/2": 1.0,
        "rollout/staleness/avg": 0.75,
        "rollout/staleness/max": 2.0,
        "rollout/staleness/min": 0.0,
        "rollout/staleness/spanning_ratio": 0.0,
    }


def test_parts_of_a_partition_add_up() -> None:
    check = StalenessCheck(version=3, bound=1)
    check.keep(batch([3, 3], [0, 0]))
    check.keep(batch([2, 2, 0, 3], [1, 1, 2, 2]))
    metrics = check.metrics()
    assert (metrics["rollout/staleness/count/0"], metrics["rollout/staleness/count/1"], check.dropped) == (2, 2, 2)
    assert metrics["rollout/staleness/avg"] == 0.5


def test_a_response_over_an_update_is_as_old_as_its_oldest_segment() -> None:
    """One that began at version 1 and ended at 3 has tokens of version 1, which are two old at 3."""
    check = StalenessCheck(version=3, bound=1)
    assert check.keep(batch([1, 3, 2, 2], [0, 0, 1, 1], last=[3, 3, 3, 2]))["group_index"].values.tolist() == [1, 1]
    assert check.metrics()["rollout/staleness/max"] == 1.0
    assert check.metrics()["rollout/staleness/spanning_ratio"] == pytest.approx(0.5)


def test_nothing_left_has_no_lag() -> None:
    check = StalenessCheck(version=1, bound=0)
    assert check.keep(batch([0, 0], [0, 0])).num_rows == 0
    assert (check.dropped, check.metrics()) == (2, {})


def test_a_batch_within_the_bound_is_not_copied() -> None:
    rows = batch([1, 2], [0, 1])
    assert StalenessCheck(version=2, bound=1).keep(rows) is rows
