"""Buckets of tensors: order, sizes, memory, and the bytes that come out again."""

import math
from collections.abc import Iterator, Mapping

import pytest
import torch

from relax_engine.weight_sync.arrival import DamagedBucketError, take_copy, unpack, verify
from relax_engine.weight_sync.buckets import Bucket, Packer, Staging, torch_dtype, unflatten
from relax_engine.weight_sync.buffers import BufferPool
from relax_engine.weight_sync.checksum import tensor_checksum, tensor_digest
from relax_engine.weight_sync.codec import encode
from relax_engine.weight_sync.messages import BucketMeta, TensorMeta

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int8, torch.int32]
Named = list[tuple[str, torch.Tensor]]


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 100
    return values.to(dtype) if dtype.is_floating_point else values.abs().clamp(max=100).to(dtype)


def every_kind() -> Named:
    shapes = [(3,), (), (1, 5), (7, 3), (0, 4), (2, 1, 3)]
    return [
        (f"{dtype}.{shape}", random_tensor(shape, dtype, seed))
        for seed, (dtype, shape) in enumerate((dtype, shape) for shape in shapes for dtype in DTYPES)
    ]


def packer(limit: int, held: Mapping[str, int] | None = None, alignment: int = 1) -> Packer:
    staging = Staging(limit, lambda nbytes: torch.empty(nbytes, dtype=torch.uint8))
    return Packer(staging, held or {}, alignment=alignment)


def one_bucket(named: Named, alignment: int = 1) -> Bucket:
    (bucket,) = packer(1 << 20, alignment=alignment).pack(named)
    return bucket


@pytest.mark.parametrize(
    ("tensors", "buckets"),
    [
        ([], []),
        ([("a", 10)], [["a"]]),
        ([("a", 5), ("b", 5), ("c", 1)], [["a", "b"], ["c"]]),  # the limit itself still fits
        ([("a", 5), ("b", 6), ("c", 4)], [["a"], ["b", "c"]]),
        ([("a", 25)], [["a"]]),
        ([("a", 3), ("big", 25), ("b", 3)], [["a"], ["big"], ["b"]]),  # nothing rides with a tensor that is too large
        ([("a", 3), ("empty", 0), ("b", 7), ("c", 1)], [["a", "empty", "b"], ["c"]]),
    ],
)
def test_tensors_keep_their_order_and_buckets_their_limit(tensors: list, buckets: list[list[str]]) -> None:
    named = [(name, torch.zeros(nbytes, dtype=torch.uint8)) for name, nbytes in tensors]
    assert [[tensor.name for tensor in bucket.meta.tensors] for bucket in packer(10).pack(named)] == buckets


def test_equal_tensors_make_as_many_buckets_as_their_bytes_need() -> None:
    """One request per bucket, not per tensor (verl#3766)."""
    tensors = [(str(i), torch.zeros(16, dtype=torch.bfloat16)) for i in range(1000)]
    for limit in (32, 100, 3200, 10**6):
        buckets = list(packer(limit).pack(tensors))
        assert len(buckets) == math.ceil(1000 / (limit // 32))


def test_two_buffers_are_all_that_is_ever_staged() -> None:
    """Staging took the whole model (sglang#10597); tensors are taken only as buckets need them."""
    taken = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for i in range(100):
            taken.append(i)
            yield str(i), torch.full((1 << 16,), i % 7, dtype=torch.float32)

    limit = 3 << 18
    packing = packer(limit)
    for number, bucket in enumerate(packing.pack(tensors()), start=1):
        assert len(taken) <= 3 * number + 1
        assert bucket.data.numel() <= limit
    assert packing.staging.peak_nbytes == 2 * limit


def test_a_bucket_stays_good_while_the_next_one_is_packed() -> None:
    tensors = [(str(i), torch.full((8,), i, dtype=torch.uint8)) for i in range(6)]
    buckets = packer(8).pack(tensors)
    before = next(buckets)
    for number, bucket in enumerate(buckets):
        assert before.data.tolist() == [number] * 8
        assert bucket.data.tolist() == [number + 1] * 8
        before = bucket


def test_buffers_grow_with_what_is_in_them_and_are_kept() -> None:
    sizes: list[int] = []

    def allocate(nbytes: int) -> torch.Tensor:
        sizes.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    staging = Staging(5 << 20, allocate)
    named = [(str(i), random_tensor((1 << 18,), torch.float32, i)) for i in range(4)]
    for _ in range(2):
        (bucket,) = Packer(staging, {}).pack(named)
        assert [torch.equal(got, sent) for (_, got), (_, sent) in zip(unpack(*_parts(bucket))[0], named, strict=True)]
    assert sizes == [1 << 20, 2 << 20, 4 << 20] * 2
    (bucket,) = Packer(staging, {}).pack(named)
    assert len(sizes) == 6


def _parts(bucket: Bucket) -> tuple[BucketMeta, torch.Tensor]:
    return bucket.meta, bucket.data


def test_tensors_that_receivers_hold_are_left_out() -> None:
    named = [(str(i), torch.full((4,), i, dtype=torch.float32)) for i in range(5)]
    held = {name: tensor_digest(tensor, "xxh3") for name, tensor in named} | {"3": 1, "old": 2}
    del held["1"]
    packing = packer(1 << 20, held)
    (bucket,) = packing.pack(named)
    assert [tensor.name for tensor in bucket.meta.tensors] == ["1", "3"]
    assert packing.skipped_nbytes == 3 * 16
    assert packing.digests == {name: tensor_digest(tensor, "xxh3") for name, tensor in named}


@pytest.mark.parametrize("alignment", [1, 64])
def test_tensors_of_any_type_and_size_come_back(alignment: int) -> None:
    named = every_kind()
    bucket = one_bucket(named, alignment)
    assert bucket.meta.nbytes == sum(t.nbytes for _, t in named)
    assert all(start % alignment == 0 for start in bucket.starts)
    for (_, sent), start in zip(named, bucket.starts, strict=True):
        assert torch.equal(bucket.data[start : start + sent.nbytes].clone().view(sent.dtype).view(sent.shape), sent)


def test_received_bytes_may_lie_anywhere() -> None:
    named = every_kind()
    bucket = one_bucket(named)
    assert bucket.data.numel() == bucket.meta.nbytes
    buffer = torch.empty(bucket.data.numel() + 1, dtype=torch.uint8)
    for start in (0, 1):
        received = buffer[start : start + bucket.data.numel()]
        received.copy_(bucket.data)
        back, digests = unpack(bucket.meta, received)
        for (name, got), (sent_name, sent) in zip(back, named, strict=True):
            assert (name, got.dtype, got.shape) == (sent_name, sent.dtype, sent.shape)
            assert torch.equal(got, sent), name
            assert digests[name] == tensor_digest(sent, "xxh3")


@pytest.mark.parametrize("dtypes", [[torch.float32], [torch.bfloat16], DTYPES])
def test_a_compressed_bucket_comes_back(dtypes: list[torch.dtype]) -> None:
    named = [(str(i), random_tensor((501, 3), dtype, i)) for i, dtype in enumerate(dtypes * 2)]
    bucket = one_bucket(named)
    payload = encode(bucket.data, bucket.meta.itemsize)
    assert payload.numel() < bucket.data.numel()
    meta = BucketMeta(bucket.meta.tensors, bucket.meta.checksum, payload.numel())
    assert meta.payload_nbytes == payload.numel() < meta.nbytes
    for (_, got), (_, sent) in zip(unpack(meta, payload)[0], named, strict=True):
        assert torch.equal(got, sent)
    payload[payload.numel() // 2] ^= 1
    with pytest.raises(DamagedBucketError, match="the bucket '0'"):
        unpack(meta, payload)


def test_the_checksum_is_that_of_the_tensors_in_order() -> None:
    named = every_kind()
    bucket = one_bucket(named)
    assert bucket.meta.checksum == tensor_checksum(tensor for _, tensor in named)


def test_what_differs_from_its_description_is_refused() -> None:
    named = [("a", torch.arange(5.0)), ("b", torch.arange(3.0))]
    bucket = one_bucket(named)
    flat = bucket.data.clone()
    flat[7] ^= 1
    with pytest.raises(
        DamagedBucketError, match=r"checksum of the bucket 'a'\.\.'b' is xxh3:\S+, the sender says xxh3:"
    ):
        unpack(bucket.meta, flat)
    damaged = [("a", torch.arange(5.0) + 1), named[1]]
    for check in (verify, lambda meta, named: take_copy(meta, named, BufferPool())):
        with pytest.raises(DamagedBucketError, match="the old weights stay"):
            check(bucket.meta, damaged)
        for wrong in (named[:1], named[::-1], [("a", torch.arange(5)), named[1]]):
            with pytest.raises(DamagedBucketError, match="not those that it describes"):
                check(bucket.meta, wrong)
    with pytest.raises(DamagedBucketError, match="no known algorithm"):
        verify(BucketMeta(bucket.meta.tensors, "crc:0"), named)


def test_a_copy_does_not_share_memory_with_what_it_was_taken_from() -> None:
    named = [("a", torch.arange(5.0)), ("b", torch.arange(3, dtype=torch.int8))]
    copies, digests = take_copy(one_bucket(named).meta, named, BufferPool())
    named[0][1].zero_()
    assert copies[0][1].tolist() == [0, 1, 2, 3, 4]
    assert digests["b"] == tensor_digest(named[1][1], "xxh3")


def test_a_description_that_does_not_fit_is_refused() -> None:
    meta = BucketMeta((TensorMeta("a", "float32", (2,)),), "")
    with pytest.raises(ValueError, match="a bucket of 12 bytes describes 8 bytes"):
        unflatten(meta, torch.zeros(12, dtype=torch.uint8))
    with pytest.raises(ValueError, match="unknown tensor dtype 'nn'"):
        torch_dtype("nn")


def test_byte_sizes_known_without_torch_are_torchs() -> None:
    for dtype in [*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int16, torch.bool]:
        meta = TensorMeta("t", str(dtype).removeprefix("torch."), (3, 2))
        assert meta.nbytes == 6 * dtype.itemsize
