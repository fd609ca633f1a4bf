"""Batches to blocks and back, and the column helpers the stream relies on."""

import pickle
import warnings

import numpy as np
import pytest

from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.delivery import Delivery, RowGroups, Slice, Source, Stored
from relax_engine.stream.payload import assemble, pack, row_groups, version_range
from relax_engine.stream.tensors import as_tensor


def batch(start, rows):
    return ColumnBatch(
        {
            "tokens": Column.ragged([np.arange(r) + r for r in range(start, start + rows)], np.int32),
            "reward": Column.fixed(np.arange(start, start + rows, dtype=np.float32)),
        }
    )


def delivery(*slices, columns=("tokens", "reward")):
    return Delivery("t", "p", 0, ((0, 1),), (Source(columns, tuple(Slice(*s) for s in slices)),))


def test_one_block_comes_back_as_views():
    (payload,) = pack([batch(0, 6)])
    whole = assemble(delivery(("x", 0, 6)), {"x": payload})
    assert whole["tokens"].values is payload["tokens"][0]
    part = assemble(delivery(("x", 2, 4)), {"x": payload})
    assert part["tokens"].values.base is not None
    assert np.shares_memory(part["tokens"].values, payload["tokens"][0])
    assert [part["tokens"].row(i).tolist() for i in range(2)] == [[2, 3], [3, 4, 5]]
    assert part["reward"].values.tolist() == [2, 3]


def test_rows_of_several_blocks_in_order_zero_length_rows_included():
    first, second = pack([batch(0, 3), batch(3, 3)])
    result = assemble(delivery(("x", 1, 3), ("y", 0, 2)), {"x": first, "y": second})
    assert result["tokens"].lengths.tolist() == [1, 2, 3, 4]
    assert result["reward"].values.tolist() == [1, 2, 3, 4]
    empty = assemble(delivery(("x", 0, 1)), {"x": first})
    assert empty["tokens"].lengths.tolist() == [0]


def test_rows_of_a_stored_object():
    blocks = {name: Stored(name[0], 0, None).block(0, 3, 0) for name in ("x/0", "y/0")}
    sources = (
        Source(("tokens",), (Slice("x/0", 1, 3), Slice("y/0", 0, 2))),
        Source(("reward",), (Slice("x/0", 0, 3), Slice("y/0", 0, 1))),
    )
    spread = Delivery("t", "p", 0, ((4, 6), (9, 11)), sources, blocks)
    assert spread.rows_in("x") == ((4, 6), (9, 10))
    assert spread.rows_in("y") == ((9, 11),)


def test_a_column_that_was_not_taken_is_named():
    (payload,) = pack([batch(0, 2)])
    assert set(assemble(delivery(("x", 0, 2)), {"x": payload}, ["reward"])) == {"reward"}
    with pytest.raises(KeyError, match=r"'advantages'.* were not requested"):
        assemble(delivery(("x", 0, 2)), {"x": payload}, ["advantages"])


def test_groups_and_versions_of_a_batch():
    columns = {
        "group_index": Column.fixed([7, 7, 3, 5, 5]),
        "first_version": Column.fixed([4, 2, 3, 3, 3]),
        "last_version": Column.fixed([4, 5, 3, 3, 3]),
    }
    assert row_groups(ColumnBatch(columns)) == RowGroups((7, 3, 5), (2, 1, 2))
    assert version_range(ColumnBatch(columns)) == (2, 5)
    assert row_groups(batch(0, 2)) is None
    with pytest.raises(ValueError, match="contiguous"):
        row_groups(ColumnBatch({"group_index": Column.fixed([1, 2, 1])}))


def test_images_of_different_shapes_travel_out_of_band():
    images = Column.objects([np.full((h, 4, 3), h, np.uint8) for h in (2, 3, 5)])
    assert images.nbytes == 3 * 8 + (2 + 3 + 5) * 12
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(pack([ColumnBatch({"image": images})]), protocol=5, buffer_callback=buffers.append)
    assert sum(len(b.raw()) for b in buffers) >= 120
    back = pickle.loads(data, buffers=buffers)[0]["image"][0]
    assert [image.shape for image in back] == [(2, 4, 3), (3, 4, 3), (5, 4, 3)]
    both = Column.concat([images, Column.objects([np.zeros((1, 1, 3), np.uint8)])])
    assert len(both) == 4


def test_as_tensor_is_silent_on_read_only_memory():
    values = np.arange(4, dtype=np.float32)
    values.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = as_tensor(Column(values))
    assert tensor.data_ptr() == values.ctypes.data
