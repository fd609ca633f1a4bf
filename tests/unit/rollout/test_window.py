"""Which finished group goes into which partition."""

import random

import pytest

from relax_engine.rollout.window import Placement, PlacementWindow


def places(window: PlacementWindow) -> list[tuple[int, int, bool]]:
    found = []
    while (placement := window.place()) is not None:
        found.append((placement.group, placement.partition, placement.last))
    return found


def finish(window: PlacementWindow, *groups: int) -> None:
    for group in groups:
        window.finish(group)


def test_the_trace_in_the_docstring() -> None:
    window = PlacementWindow(max_staleness=1, groups_per_step=2)
    window.admit([0, 1, 2, 3], version=0)
    finish(window, 0, 2, 3)
    assert [window.place().group for _ in range(2)] == [0, 2]
    assert window.resume_point() == (3, [1])
    assert places(window) == [(3, 1, False)]
    window.admit([4, 5], version=1)
    finish(window, 4, 5)
    assert places(window) == []
    window.finish(1)
    assert places(window) == [(1, 1, True), (4, 2, False), (5, 2, True)]


def test_in_order_rows_do_not_depend_on_which_group_finishes_first() -> None:
    window = PlacementWindow(max_staleness=0, groups_per_step=3, first_partition=5, in_order=True)
    window.admit([15, 16, 17], version=5)
    finish(window, 17, 16)
    assert places(window) == []
    window.finish(15)
    assert places(window) == [(15, 5, False), (16, 5, False), (17, 5, True)]


def test_a_refused_group_gives_its_place_to_the_one_admitted_for_it() -> None:
    window = PlacementWindow(max_staleness=0, groups_per_step=2)
    window.admit([0, 1], version=0)
    window.discard(0)
    window.admit([2], version=0)
    finish(window, 1, 2)
    assert places(window) == [(1, 0, False), (2, 0, True)]
    assert window.resume_point() == (3, [])


def test_one_slow_group_holds_up_no_step_before_its_deadline() -> None:
    """With bound 3, a group that takes three steps longer than the others delays nobody."""
    window = PlacementWindow(max_staleness=3, groups_per_step=4)
    window.admit(range(16), version=0)
    finish(window, *range(1, 16))
    assert [partition for _, partition, last in places(window) if last] == [0, 1, 2]
    window.finish(0)
    assert places(window) == [(0, 3, True)]


@pytest.mark.parametrize("seed", range(10))
def test_deadlines_hold_and_partitions_are_full_under_any_order_of_finishing(seed: int) -> None:
    """Random admission within the gate's budget, random finishing, random training."""
    rng = random.Random(seed)
    staleness, per_step = rng.randrange(4), rng.randrange(1, 6)
    window = PlacementWindow(max_staleness=staleness, groups_per_step=per_step)
    budget = (staleness + 1) * per_step
    version, occupied, admitted = 0, 0, 0
    running: list[int] = []
    admitted_at: dict[int, int] = {}
    contents: dict[int, list[int]] = {}
    for _ in range(4000):
        action = rng.random()
        if action < 0.4 and occupied < budget:
            window.admit([admitted], version)
            admitted_at[admitted] = version
            running.append(admitted)
            admitted, occupied = admitted + 1, occupied + 1
        elif action < 0.8 and running:
            group = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.2:
                window.discard(group)
                occupied -= 1
                continue
            window.finish(group)
            for number, partition, last in places(window):
                contents.setdefault(partition, []).append(number)
                assert last == (len(contents[partition]) == per_step)
                assert partition <= admitted_at[number] + staleness
        elif len(contents.get(version, ())) == per_step:
            occupied -= per_step
            version += 1
    assert version > 50
    assert list(contents) == list(range(len(contents)))


def test_a_window_that_begins_inside_a_partition() -> None:
    """A restarted producer goes on where its predecessor stopped: three of four groups of partition 5 are placed."""
    window = PlacementWindow(max_staleness=1, groups_per_step=4, first_partition=5, placed=3)
    window.admit([9, 23, 24], version=5)
    for group in (9, 23, 24):
        window.finish(group)
    assert [window.place() for _ in range(3)] == [
        Placement(9, 5, last=True),
        Placement(23, 6, last=False),
        Placement(24, 6, last=False),
    ]
