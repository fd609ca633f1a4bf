"""Partitions of the groups that finish first."""

from relax_engine.rollout.window import FirstFinished


def places(window: FirstFinished) -> list[tuple[int, int, bool]]:
    found = []
    while (placement := window.place()) is not None:
        found.append((placement.group, placement.partition, placement.last))
    return found


def test_the_oldest_finished_fill_a_partition_once_enough_are() -> None:
    window = FirstFinished(groups_per_step=2, surplus=2, first_partition=4)
    window.admit(range(4), version=0)
    window.finish(3)
    assert places(window) == []  # three older ones are missing, two may be
    window.finish(2)
    assert places(window) == [(2, 4, False), (3, 4, True)]
    window.discard(0)
    window.discard(1)
    window.admit([0, 4, 5, 6], version=1)
    for number in (6, 5, 0):
        window.finish(number)
    assert places(window) == [(0, 5, False), (5, 5, True), (6, 6, False)]


def test_without_a_surplus_the_order_is_that_of_the_numbers() -> None:
    window = FirstFinished(groups_per_step=3, surplus=0)
    window.admit(range(3), version=0)
    for number in (2, 1):
        window.finish(number)
    assert places(window) == []
    window.finish(0)
    assert [group for group, *_ in places(window)] == [0, 1, 2]


def test_a_discarded_group_is_waited_for_no_longer() -> None:
    window = FirstFinished(groups_per_step=2, surplus=0)
    window.admit([0, 1, 2], version=0)
    window.finish(1)
    window.finish(2)
    window.discard(0)
    assert [group for group, *_ in places(window)] == [1, 2]
