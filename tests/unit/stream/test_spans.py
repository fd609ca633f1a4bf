"""Row sets as spans agree with Python sets."""

import random

import numpy as np
import pytest

from relax_engine.stream.spans import as_spans, count, describe, intersect, subtract, union


def rows_of(spans):
    return {row for start, stop in spans for row in range(start, stop)}


def test_set_algebra_equals_python_sets():
    rng = random.Random(0)
    for _ in range(500):
        left, right = ({rng.randrange(30) for _ in range(rng.randrange(20))} for _ in range(2))
        a, b = as_spans(sorted(left)), as_spans(sorted(right))
        assert rows_of(a) == left
        assert rows_of(union(a, b)) == left | right
        assert rows_of(intersect(a, b)) == left & right
        assert rows_of(subtract(a, b)) == left - right
        assert count(a) == len(left)
        assert as_spans(sorted(left | right)) == union(a, b)  # one canonical form


def test_appending_in_order_stays_one_span():
    spans = ()
    for start in range(0, 4096, 64):
        spans = union(spans, ((start, start + 64),))
    assert spans == ((0, 4096),)


@pytest.mark.parametrize("rows", [[3, 2], [1, 1], range(0, 8, 2), ((0, 4), (2, 6)), ((4, 4),)])
def test_rows_that_are_not_ascending_are_refused(rows):
    with pytest.raises(ValueError, match=r"ascending|step"):
        as_spans(rows)


def test_accepted_forms():
    assert as_spans(range(2, 5)) == as_spans(np.array([2, 3, 4])) == as_spans([2, 3, 4]) == as_spans(((2, 5),))
    assert as_spans(()) == as_spans(range(3, 3)) == ()


def test_description_is_short():
    assert describe(as_spans([0, 1, 2, 5])) == "0-2, 5 (4 rows)"
    assert "96 more ranges" in describe(as_spans(range(0, 1)) + tuple((2 * i, 2 * i + 1) for i in range(1, 100)))
