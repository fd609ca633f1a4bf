"""Batches to blocks and back, and the column helpers the stream relies on."""

import pickle
import warnings

import numpy as np
import pytest

from relax_engine.stream.columns import Column, ColumnBatch
from relax_engine.stream.delivery import Delivery, RowGroups, Slice, Source, Stored
from relax_engine.stream.payload import Packer, assemble, row_groups, version_range
from relax_engine.stream.tensors import as_tensor


def batch(start, rows):
    return ColumnBatch(
        {
            "tokens": Column.ragged([np.arange(r) + r for r in range(start, start + rows)], np.int32),
            "reward": Column.fixed(np.arange(start, start + rows, dtype=np.float32)),
        }
    )


def delivery(*slices, columns=("tokens", "reward")):
    """Slices of batches `x/<part>`, all of them in one stored object `x`."""
    blocks = {name: Stored("x", 0, None).block(int(name[2:]), 0, 0) for name, _, _ in slices}
    return Delivery("t", "p", 0, ((0, 1),), (Source(columns, tuple(Slice(*s) for s in slices)),), blocks)


def pack(*batches):
    return {"x": Packer(1 << 20).pack(batches)}


def test_one_block_comes_back_as_views():
    objects = pack(batch(0, 6))
    whole = assemble(delivery(("x/0", 0, 6)), objects)
    assert whole["tokens"].values.tolist() == [n for r in range(6) for n in range(r, 2 * r)]
    part = assemble(delivery(("x/0", 2, 4)), objects)
    for result in (whole, part):
        assert np.shares_memory(result["tokens"].values, objects["x"].buffer)
    assert [part["tokens"].row(i).tolist() for i in range(2)] == [[2, 3], [3, 4, 5]]
    assert part["reward"].values.tolist() == [2, 3]


def test_rows_of_several_blocks_in_order_zero_length_rows_included():
    objects = pack(batch(0, 3), batch(3, 3))
    result = assemble(delivery(("x/0", 1, 3), ("x/1", 0, 2)), objects)
    assert result["tokens"].lengths.tolist() == [1, 2, 3, 4]
    assert result["reward"].values.tolist() == [1, 2, 3, 4]
    empty = assemble(delivery(("x/0", 0, 1)), objects)
    assert empty["tokens"].lengths.tolist() == [0]


def test_every_column_type_crosses_a_pickled_object_as_it_was():
    given = ColumnBatch(
        {
            "none": Column.ragged([[], []], np.float32),
            "pixels": Column.ragged([np.ones((2, 3), np.uint8), np.zeros((0, 3), np.uint8)], np.uint8),
            "flag": Column.fixed([True, False]),
            "pair": Column.fixed(np.arange(4, dtype=np.float64).reshape(2, 2)[:, ::-1]),
            "name": Column.fixed(np.array(["a", "long"])),
        }
    )
    packed = pickle.loads(pickle.dumps(Packer(1 << 20).pack([batch(0, 3), given])))
    assert packed.column(0, "tokens").values.tolist() == [1, 2, 3]
    for name, column in given.items():
        back = packed.column(1, name)
        assert (back.dtype, back.shape) == (column.dtype, column.shape)
        assert back.values.tolist() == column.values.tolist()
        assert (back.offsets is None) == (column.offsets is None)
        assert back.offsets is None or back.offsets.tolist() == column.offsets.tolist()
        assert (back.values.ctypes.data - packed.buffer.ctypes.data) % 64 == 0


def test_a_packer_uses_its_memory_again_up_to_a_bound():
    packer = Packer(4096)
    first, second = packer.pack([batch(0, 6)]), packer.pack([batch(6, 6)])
    assert np.shares_memory(first.buffer, second.buffer)
    assert second.column(0, "reward").values.tolist() == [6, 7, 8, 9, 10, 11]
    large = packer.pack([ColumnBatch({"x": Column.fixed(np.ones(4097, np.uint8))})])
    assert not np.shares_memory(first.buffer, large.buffer)
    assert large.column(0, "x").values.sum() == 4097


def test_rows_are_joined_when_they_are_read_and_copied_once_when_they_are_packed():
    rows = [np.arange(3), np.arange(3, 5)]
    column = Column.ragged(rows, np.int64)
    assert (column.shape, column.nbytes, len(column), column.lengths.tolist()) == ((5,), 5 * 8 + 3 * 8, 2, [3, 2])
    into = np.empty(5, np.int64)
    column.write(into)
    rows[0][:] = 9  # still the caller's memory: nothing has read the column as one array
    assert column.values.tolist() == [9, 9, 9, 3, 4]
    rows[0][:] = 7
    assert column.values is column.values
    assert column.values.tolist() == [9, 9, 9, 3, 4]
    assert into.tolist() == [0, 1, 2, 3, 4]
    again = pickle.loads(pickle.dumps(Column.concat([column, column.slice(1, 2)])))
    assert again.values.tolist() == [9, 9, 9, 3, 4, 3, 4]
    assert again.offsets.tolist() == [0, 3, 5, 7]


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
    objects = pack(batch(0, 2))
    assert set(assemble(delivery(("x/0", 0, 2)), objects, ["reward"])) == {"reward"}
    with pytest.raises(KeyError, match=r"'advantages'.* were not requested"):
        assemble(delivery(("x/0", 0, 2)), objects, ["advantages"])


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
    data = pickle.dumps(pack(ColumnBatch({"image": images}))["x"], protocol=5, buffer_callback=buffers.append)
    assert sum(len(b.raw()) for b in buffers) >= 120
    back = pickle.loads(data, buffers=buffers).column(0, "image").values
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
