"""Buckets of tensors: order, sizes, and the bytes that come out again."""

import math
from collections.abc import Iterator

import pytest
import torch

from relax_engine.weight_sync.buckets import fill_buckets, flatten, torch_dtype, unflatten
from relax_engine.weight_sync.messages import BucketMeta, TensorMeta

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int8, torch.int32]


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 100
    return values.to(dtype) if dtype.is_floating_point else values.abs().clamp(max=100).to(dtype)


def sizes(names_and_bytes: list[tuple[str, int]], limit: int) -> list[list[str]]:
    tensors = [(name, torch.zeros(nbytes, dtype=torch.uint8)) for name, nbytes in names_and_bytes]
    return [[name for name, _ in bucket] for bucket in fill_buckets(tensors, limit)]


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
    assert sizes(tensors, 10) == buckets


def test_equal_tensors_make_as_many_buckets_as_their_bytes_need() -> None:
    """One request per bucket, not per tensor (verl#3766)."""
    tensors = [(str(i), torch.zeros(16, dtype=torch.bfloat16)) for i in range(1000)]
    for limit in (32, 100, 3200, 10**6):
        buckets = list(fill_buckets(tensors, limit))
        assert len(buckets) == math.ceil(1000 / (limit // 32))


def test_tensors_are_taken_only_as_buckets_are() -> None:
    """At most one bucket and one tensor is held at a time (sglang#10597)."""
    taken = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for i in range(100):
            taken.append(i)
            yield str(i), torch.zeros(10, dtype=torch.uint8)

    buckets = fill_buckets(tensors(), 30)
    for number in range(1, 5):
        next(buckets)
        assert len(taken) == 3 * number + 1


def test_flattened_tensors_of_any_type_and_size_come_back() -> None:
    shapes = [(3,), (), (1, 5), (7, 3), (0, 4), (2, 1, 3)]
    named = [
        (f"{dtype}.{shape}", random_tensor(shape, dtype, seed))
        for seed, (dtype, shape) in enumerate((dtype, shape) for shape in shapes for dtype in DTYPES)
    ]
    meta, flat = flatten(named)
    assert flat.dtype == torch.uint8
    assert flat.numel() == meta.nbytes == sum(t.numel() * t.element_size() for _, t in named)
    # Received bytes lie anywhere in memory: at an odd address too.
    buffer = torch.empty(flat.numel() + 1, dtype=torch.uint8)
    for start in (0, 1):
        received = buffer[start : start + flat.numel()]
        received.copy_(flat)
        back = unflatten(meta, received)
        assert [name for name, _ in back] == [name for name, _ in named]
        for (name, got), (_, sent) in zip(back, named, strict=True):
            assert (got.dtype, got.shape) == (sent.dtype, sent.shape), name
            assert torch.equal(got, sent), name


def test_a_view_is_flattened_by_its_values() -> None:
    base = torch.arange(12.0).view(3, 4)
    for view in (base.t(), base[:, 1:3], base[1]):
        meta, flat = flatten([("v", view)])
        assert torch.equal(unflatten(meta, flat)[0][1], view)


def test_the_checksum_is_that_of_the_bytes() -> None:
    a, b = torch.arange(5.0), torch.arange(3, dtype=torch.uint8)
    meta, flat = flatten([("a", a), ("b", b)])
    assert flatten([("other name", flat)])[0].checksum == meta.checksum


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
