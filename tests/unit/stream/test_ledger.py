"""Accounting, budgets and messages over several partitions."""

import random

import pytest

from relax_engine.rollout.admission import AdmissionGate
from relax_engine.stream.delivery import PutItem, RowGroups, Stored
from relax_engine.stream.errors import BudgetError, PartitionDroppedError, StreamError
from relax_engine.stream.ledger import StreamLedger


def put(ledger, partition, rows, *, token="", groups=None, now=0.0, nbytes=None):
    token = token or f"{partition}-{ledger.produced}"
    nbytes = 10 * rows if nbytes is None else nbytes
    item = PutItem(rows, nbytes, ("a",), groups, token, None, 1.0)
    return ledger.put(partition, Stored(token, 0, None).block(0, rows, nbytes), item, now=now)


def ledger_of(**options):
    return StreamLedger(**{"row_budget": 100, "byte_budget": 1000, **options})


def balanced(stats):
    return stats.produced == stats.trained + stats.filtered + stats.dropped_stale + stats.in_flight


def test_accounting_holds_after_every_operation():
    for seed in range(30):
        rng = random.Random(seed)
        ledger = ledger_of(row_budget=10**6, byte_budget=10**9)
        names = [f"train_{i}" for i in range(8)]
        produced = 0
        for step in range(300):
            name = rng.choice(names)
            action = rng.random()
            try:
                if action < 0.5:
                    rows, token = rng.randrange(1, 9), f"{name}:{rng.randrange(40)}"
                    known = ledger.knows(name, token)
                    put(ledger, name, rows, token=token)
                    produced += 0 if known else rows
                elif action < 0.6:
                    ledger.record("filtered", rng.randrange(5))
                elif action < 0.7:
                    ledger.record("dropped_stale", rng.randrange(5))
                elif action < 0.75:
                    ledger.open(name, 0.0).seal()
                elif action < 0.8 and step > 100:
                    ledger.drop(name, rng.choice(["trained", "dropped_stale"]), filtered=rng.randrange(3))
            except (StreamError, ValueError):
                pass  # sealed, dropped, unknown: refused operations must not count either
            stats = ledger.stats()
            assert balanced(stats)
            assert stats.in_flight == sum(table.rows for table in ledger.partitions.values())
            assert stats.nbytes == sum(table.nbytes for table in ledger.partitions.values())
        assert produced <= ledger.stats().produced


def test_where_samples_end():
    ledger = ledger_of()
    put(ledger, "train_0", 8)
    ledger.record("filtered", 4)
    assert ledger.drop("train_0", "trained", dropped_stale=2) is not None
    stats = ledger.stats()
    assert (stats.produced, stats.trained, stats.filtered, stats.dropped_stale, stats.in_flight) == (12, 6, 4, 2, 0)
    assert ledger.drop("train_0", "trained") is None  # a retry changes nothing
    assert ledger.stats() == stats
    with pytest.raises(PartitionDroppedError, match=r"'train_0' was dropped \(trained\)"):
        put(ledger, "train_0", 1)


def test_more_exceptions_than_rows_are_refused():
    ledger = ledger_of()
    put(ledger, "train_0", 8)
    with pytest.raises(ValueError, match="has 8 rows; cannot end 5 as filtered and 4 as dropped_stale"):
        ledger.drop("train_0", "trained", filtered=5, dropped_stale=4)
    assert ledger.stats().in_flight == 8


def test_budget():
    ledger = ledger_of()
    put(ledger, "train_0", 60)
    block = Stored("k", 0, None).block(0, 41, 10)
    assert not ledger.fits(block)
    assert ledger.fits(Stored("k", 0, None).block(0, 40, 400))
    assert not ledger.fits(Stored("k", 0, None).block(0, 1, 401))
    with pytest.raises(BudgetError, match=r"101 rows and 10 bytes exceeds .* 100 rows and 1000 bytes"):
        ledger.fits(Stored("k", 0, None).block(0, 101, 10))
    ledger.partitions["train_0"].select("actor", 0, ("a",), max_rows=16, now=2.0)
    text = ledger.explain_put(block, now=5.0)
    assert "60 of 100 rows" in text
    assert "'train_0' (60 rows, 600 bytes, 5.0 s old)" in text
    assert "task 'actor' has 16 of 60 rows, committed seq -1, last asked 3.0 s ago" in text


def test_columns_count_against_memory_and_leave_with_the_partition():
    ledger = ledger_of()
    put(ledger, "train_0", 4)
    assert ledger.put_columns("train_0", ((0, 4),), Stored("c", 0, None).block(0, 4, 16), ("b",))
    assert not ledger.put_columns("train_0", ((0, 4),), Stored("again", 0, None).block(0, 4, 16), ("b",))
    assert ledger.stats().nbytes == 56
    # The same call again, by a client that did not get its answer.
    assert ledger.put_columns("train_0", ((0, 4),), Stored("c", 0, None).block(0, 4, 16), ("b",))
    assert ledger.stats().nbytes == 56
    assert ledger.lose("train_0", "c") == ((0, 4),)
    assert ledger.stats().nbytes == 40
    ledger.drop("train_0", "trained")
    assert ledger.stats().nbytes == 0


def test_a_deadline_names_the_group_its_age_and_its_engine():
    gate = AdmissionGate(max_staleness=0, groups_per_step=3)
    ledger = ledger_of(gate=gate)
    gate.try_admit(3, now=0.0)
    gate.assign(2, "http://engine-b:3000", now=4.0)
    put(ledger, "train_0", 2, groups=RowGroups((0,), (2,)))
    text = ledger.explain_take("actor", "train_0", 0, ("a", "adv"), now=10.0)
    assert "column 'adv' is missing on rows 0-1 (2 rows)" in text
    assert "group 1 for 10.0 s, not given to an engine" in text
    assert "group 2 for 6.0 s on http://engine-b:3000" in text
    assert "group 0" not in text
    assert "nobody has put into it" in ledger.explain_take("actor", "train_1", 0, ("a",), now=10.0)


def test_slots_are_released_by_training_not_by_taking():
    gate = AdmissionGate(max_staleness=0, groups_per_step=2)
    ledger = ledger_of(gate=gate)
    gate.try_admit(2, now=0.0)
    put(ledger, "train_0", 4, groups=RowGroups((0, 1), (2, 2)))
    ledger.partitions["train_0"].select("actor", 0, ("a",), max_rows=4)
    assert gate.free == 0
    ledger.drop("train_0", "trained")
    assert gate.free == 2
    assert gate.released["trained"] == 2


def test_a_retained_partition_is_taken_again_by_the_same_deliveries():
    ledger = ledger_of(gate=AdmissionGate(max_staleness=0, groups_per_step=2))
    for number in range(2):
        ledger.admit(2, f"t{number}", 0.0)
        put(ledger, f"train_{number}", 4, groups=RowGroups((2 * number, 2 * number + 1), (2, 2)))
        ledger.seal(f"train_{number}", {}, 0.0)
        first, new = ledger.select(f"train_{number}", "actor_train", 0, ("a",), 2, None, True, 0.0)
        assert new
        assert ledger.finish(f"train_{number}", number + 1, 0, retain=True) == []
        again, new = ledger.select(f"train_{number}", "actor_train", 0, ("a",), 2, None, True, 0.0)
        assert (again, new) == (first, False)
    stats = ledger.stats()
    # Trained rows have left budget, accounting and gate, retained or not, and are counted once.
    assert (stats.trained, stats.in_flight, stats.nbytes, stats.groups_occupied) == (8, 0, 0, 0)
    assert ledger.finish("train_0", 1, 0, retain=True) == []
    assert (ledger.stats().trained, ledger.stats().weight_version) == (8, 2)
    # A step with a checkpoint ends them all.
    put(ledger, "train_2", 4, groups=RowGroups((4, 5), (2, 2)))
    assert ledger.finish("train_2", 3, 0, retain=False) == ["train_2", "train_0", "train_1"]
    with pytest.raises(PartitionDroppedError):
        ledger.find("train_0")


def test_what_a_new_producer_is_told():
    ledger = ledger_of(gate=AdmissionGate(max_staleness=1, groups_per_step=2))
    assert ledger.admit(4, "t", 0.0) == [0, 1, 2, 3]
    put(ledger, "train_0", 4, groups=RowGroups((0, 1), (2, 2)))
    ledger.seal("train_0", {"position": 2}, 0.0)
    put(ledger, "train_1", 2, groups=RowGroups((3,), (2,)))
    state = ledger.withdraw()
    assert (state.sealed, state.meta) == ("train_0", {"position": 2})
    assert (state.accepted, state.next_group, state.pending) == ({"train_1": [3]}, 4, [2])
    # Group 2 never came: its slot is free, and it is the next to be admitted.
    assert ledger.stats().groups_occupied == 3
    assert ledger.admit(1, "u", 0.0) == [2]
    ledger.record("filtered", 2, [2], "f")
    ledger.record("filtered", 2, [2], "f")
    assert ledger.stats().filtered == 2
    assert (ledger.withdraw().pending, ledger.stats().groups_occupied) == ([], 3)
