"""The staleness gate."""

import random

import pytest

from relax_engine.rollout.admission import AdmissionGate


def test_the_trace_in_the_docstring():
    gate = AdmissionGate(max_staleness=1, groups_per_step=2)
    assert gate.try_admit(3, 0.0) == [0, 1, 2]
    assert gate.try_admit(2, 0.0) is None
    gate.arrived([0, 1])
    assert gate.free == 1
    assert gate.release([0, 1], "trained") == 2
    gate.set_version(1)
    assert gate.free == 3
    assert gate.try_admit(3, 1.0) == [3, 4, 5]
    assert gate.free == 0
    state = gate.state()
    assert state == {"version": 1, "next_group": 6, "pending": [2, 3, 4, 5]}
    gate.recover(1, next_group=6, pending=[2])
    assert gate.free == 4
    assert gate.try_admit(2, 2.0) == [2, 6]


def test_capacity_after_resume_is_the_budget_whatever_the_version():
    """AReaL#1388: with the counter at zero and the version restored, 824 groups were admitted instead of 24."""
    gate = AdmissionGate(max_staleness=2, groups_per_step=8)
    gate.recover(100)
    assert gate.free == 24
    assert gate.try_admit(24, 0.0) == list(range(800, 824))
    assert gate.try_admit(1, 0.0) is None


def test_a_group_is_released_once():
    gate = AdmissionGate(max_staleness=0, groups_per_step=4)
    gate.try_admit(4, 0.0)
    assert gate.release([1], "filtered") == 1
    assert gate.release([1], "trained") == 0
    assert gate.released == {"trained": 0, "filtered": 1, "dropped_stale": 0}
    assert gate.free == 1  # a filtered group is replaced at once, though group 0 is not trained yet
    assert gate.try_admit(1, 0.0) == [4]


def test_random_operations_keep_the_invariants():
    for seed in range(20):
        rng = random.Random(seed)
        gate = AdmissionGate(max_staleness=rng.randrange(3), groups_per_step=rng.randrange(1, 6))
        seen: list[int] = []
        under_way: set[int] = set()
        for _ in range(300):
            if rng.random() < 0.6:
                got = gate.try_admit(rng.randint(1, gate.budget), 0.0)
                seen += got or []
                under_way |= set(got or [])
            elif under_way:
                number = rng.choice(sorted(under_way))
                under_way.discard(number)
                assert gate.release([number, number], rng.choice(["trained", "filtered", "dropped_stale"])) == 1
            assert gate.occupied == len(under_way) <= gate.budget
        assert seen == list(range(len(seen)))
        assert gate.admitted == sum(gate.released.values()) + gate.occupied


def test_messages():
    gate = AdmissionGate(max_staleness=1, groups_per_step=2)
    with pytest.raises(ValueError, match=r"cannot admit 5 groups at once: the budget is 4"):
        gate.try_admit(5, 0.0)
    gate.set_version(3)
    with pytest.raises(ValueError, match="version 2 is older than 3"):
        gate.set_version(2)
    with pytest.raises(ValueError, match="must lie below next_group=6"):
        gate.recover(3, pending=[6])
    with pytest.raises(ValueError, match="max_staleness >= 0"):
        AdmissionGate(max_staleness=-1, groups_per_step=1)
    assert gate.explain(0.0) == "no admitted group is missing (0 of 4 slots taken)"
