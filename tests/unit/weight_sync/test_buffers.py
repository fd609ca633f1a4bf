"""Receive buffers: used again when nobody holds a tensor in them, never before."""

from relax_engine.weight_sync.buffers import BufferPool


def test_a_buffer_is_used_again_when_its_last_tensor_is_gone() -> None:
    pool = BufferPool()
    first = pool.take(4 << 20)
    view = first[5:9]
    address = first.data_ptr()
    del first
    second = pool.take(4 << 20)
    assert second.data_ptr() != address
    del view
    assert pool.take(4 << 20).data_ptr() == address
    assert pool.nbytes == 8 << 20


def test_a_small_tensor_does_not_keep_a_large_buffer() -> None:
    pool = BufferPool()
    large = pool.take(8 << 20)
    del large
    small = pool.take(2 << 20)
    assert small.numel() == 2 << 20
    assert pool.nbytes == 10 << 20
    # What a larger one cannot use goes.
    del small
    assert pool.take(16 << 20).numel() == 16 << 20
    assert pool.nbytes == 16 << 20


def test_trimming_leaves_what_is_used() -> None:
    pool = BufferPool()
    kept, gone = pool.take(3 << 20), pool.take(3 << 20)
    kept.fill_(7)
    del gone
    pool.trim()
    assert pool.nbytes == 3 << 20
    assert bool((kept == 7).all())
