"""One partition's rules: who gets which rows, once."""

import random

import pytest

from relax_engine.stream.delivery import RowGroups, Stored
from relax_engine.stream.errors import StreamError
from relax_engine.stream.table import PartitionTable


def block(key, rows, part=0):
    return Stored(key, unit=0, ref=None).block(part, rows, nbytes=10 * rows)


def groups(*sizes, first=0):
    return RowGroups(tuple(range(first, first + len(sizes))), sizes)


def take(table, seq, columns=("a",), max_rows=4, task="t", **options):
    return table.select(task, seq, columns, max_rows=max_rows, **options)


def test_the_trace_in_the_docstring():
    table = PartitionTable("p")
    assert table.add_rows(block("x", 4), ["a"], groups(2, 2)) == range(4)
    both = {"columns": ("a", "b"), "max_rows": 2}
    assert take(table, 0, **both) is None
    table.add_columns(((2, 4),), block("y", 2), ["b"])
    first = take(table, 0, **both)
    assert first.spans == ((2, 4),)
    assert take(table, 0, **both) == first
    assert take(table, 2, **both) is None
    table.add_columns(((0, 2),), block("z", 2), ["b"])
    table.seal()
    assert take(table, 1, **both).spans == ((0, 2),)
    assert take(table, 2, **both).end
    assert table.lose("z") == ((0, 2),)
    assert take(table, 1, **both) is None
    assert take(table, 0, **both) == first
    table.add_columns(((0, 2),), block("z2", 2), ["b"])
    assert [piece.block for source in take(table, 1, **both).sources for piece in source.slices] == ["x/0", "z2/0"]


def test_groups_are_never_split():
    table = PartitionTable("p")
    table.add_rows(block("x", 7), ["a"], groups(3, 3, 1))
    assert take(table, 0).spans == ((0, 3),)  # the second group does not fit into the fourth place
    assert take(table, 1).spans == ((3, 7),)
    with pytest.raises(ValueError, match=r"group 0 .* more rows than max_rows=2"):
        take(table, 0, task="u", max_rows=2)
    assert take(table, 0, task="v", max_rows=2, whole_groups=False).spans == ((0, 2),)


def test_a_group_is_delivered_when_all_its_rows_have_the_column():
    table = PartitionTable("p")
    table.add_rows(block("x", 6), ["a"], groups(3, 3))
    table.add_columns(((1, 6),), block("y", 5), ["b"])
    assert take(table, 0, ("a", "b"), max_rows=3).spans == ((3, 6),)


def test_batches_are_full_until_the_seal():
    table = PartitionTable("p")
    table.add_rows(block("x", 6), ["a"])
    assert take(table, 0).spans == ((0, 4),)
    assert take(table, 1) is None
    assert take(table, 0, task="eager", min_rows=1, max_rows=100).spans == ((0, 6),)
    assert take(table, 0, task="all", max_rows=None) is None
    table.seal()
    assert take(table, 1).spans == ((4, 6),)
    assert take(table, 2).end
    assert take(table, 0, task="all", max_rows=None).spans == ((0, 6),)


def test_an_empty_sealed_partition_ends_at_once():
    table = PartitionTable("p")
    table.seal()
    assert take(table, 0).end


def test_repeated_puts_do_not_repeat_rows():
    table = PartitionTable("p")
    assert table.add_rows(block("x", 4), ["a"], token="one") == range(4)
    table.seal()
    assert table.add_rows(block("again", 4), ["a"], token="one") == range(4)
    assert table.rows == 4
    assert set(table.blocks) == {"x/0"}
    with pytest.raises(StreamError, match="'p' is sealed"):
        table.add_rows(block("late", 1), ["a"], token="two")


def test_the_first_value_of_a_column_stays():
    table = PartitionTable("p")
    table.add_rows(block("x", 4), ["a"])
    assert table.add_columns(((0, 2),), block("first", 2), ["b"]) == 0
    assert table.add_columns(((1, 4),), block("second", 3), ["b"]) == 1
    (source,) = (s for s in take(table, 0, ("b",)).sources)
    assert [(s.block, s.start, s.stop) for s in source.slices] == [("first/0", 0, 2), ("second/0", 1, 3)]
    assert table.add_columns(((0, 4),), block("third", 4), ["b"]) == 4
    assert "third/0" not in table.blocks


def test_rows_that_do_not_exist_are_refused():
    table = PartitionTable("p")
    table.add_rows(block("x", 4), ["a"])
    with pytest.raises(ValueError, match="2 row numbers for a batch of 3 rows"):
        table.add_columns(((0, 2),), block("y", 3), ["b"])
    with pytest.raises(ValueError, match="not in partition 'p', which has 4 rows"):
        table.add_columns(((3, 5),), block("y", 2), ["b"])
    with pytest.raises(ValueError, match="do not add up to the 4 rows"):
        table.add_rows(block("z", 4), ["a"], groups(1, 2))


def test_commit_and_reset():
    table = PartitionTable("p")
    table.add_rows(block("x", 8), ["a"])
    with pytest.raises(ValueError, match=r"seq 0 .* not delivered"):
        table.commit("t", 0)
    first = take(table, 0)
    table.commit("t", 0)
    assert table.progress(5.0)["t"].committed_seq == 0
    table.reset("t")
    assert take(table, 0) == first


def test_explanation_names_columns_rows_and_the_seq_that_was_skipped():
    table = PartitionTable("p")
    table.add_rows(block("x", 6), ["a"])
    table.add_columns(((0, 2),), block("y", 2), ["b"])
    assert take(table, 0, ("a", "b")) is None
    text = table.explain("t", 0, ("a", "b"))
    assert "column 'b' is missing on rows 2-5 (4 rows)" in text
    assert "column 'a'" not in text
    assert "seq 3 waits for seq 0" in table.explain("t", 3, ("a",))


def test_every_row_once_per_task_over_random_histories():
    """Puts, columns in any order, losses, retries and several ranks: each task gets each row exactly once."""
    for seed in range(60):
        rng = random.Random(seed)
        table = PartitionTable("p")
        seen = {"t": {}, "u": {}}
        group_of, lacking, numbers = [], [], iter(range(10**6))
        puts = rng.randrange(1, 12)
        for _ in range(400):
            action = rng.random()
            if action < 0.25 and puts:
                puts -= 1
                sizes = tuple(rng.randrange(1, 4) for _ in range(rng.randrange(1, 4)))
                first = len(group_of)
                table.add_rows(
                    block(f"x{first}", sum(sizes)), ["a"], RowGroups(tuple(first + i for i in range(len(sizes))), sizes)
                )
                for i, size in enumerate(sizes):
                    group_of += [first + i] * size
                lacking += range(first, len(group_of))
                if not puts:
                    table.seal()
            elif action < 0.5 and lacking:
                row = lacking.pop(rng.randrange(len(lacking)))
                table.add_columns(((row, row + 1),), block(f"y{row}-{next(numbers)}", 1), ["b"])
            elif action < 0.55:
                stored = [b.stored for b in table.blocks.values() if b.stored.startswith("y")]
                if stored:
                    lacking += [row for start, stop in table.lose(rng.choice(stored)) for row in range(start, stop)]
            else:
                task = rng.choice("tu")
                seq = rng.randrange(len(seen[task]) + 1)
                delivery = table.select(task, seq, ("a", "b"), max_rows=5, min_rows=rng.choice([None, 1]))
                if delivery is not None and not delivery.end:
                    assert seen[task].setdefault(seq, delivery.spans) == delivery.spans
        for row in lacking:
            table.add_columns(((row, row + 1),), block(f"y{row}-{next(numbers)}", 1), ["b"])
        table.seal()
        for task, log in seen.items():
            while not (delivery := table.select(task, len(log), ("a", "b"), max_rows=5)).end:
                log[len(log)] = delivery.spans
            rows = [row for spans in log.values() for start, stop in spans for row in range(start, stop)]
            assert sorted(rows) == list(range(len(group_of)))
            for spans in log.values():
                inside = [row for start, stop in spans for row in range(start, stop)]
                for group in {group_of[row] for row in inside}:
                    assert {i for i, g in enumerate(group_of) if g == group} <= set(inside)
