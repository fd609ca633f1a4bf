"""The checksum of weights: what must change it, and what must not."""

import pytest
import torch

from relax_engine.weight_sync.checksum import (
    algorithm_for,
    algorithm_of,
    base_digest,
    byte_view,
    combine,
    copy_with_digest,
    tensor_checksum,
    tensor_digest,
)

both = pytest.mark.parametrize("algorithm", ["xxh3", "words"])


def words(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def words_by_definition(data: bytes) -> int:
    """The documented sum in plain integers; sender and receiver may be different releases and must agree."""
    multiplier, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    whole, total = len(data) // 4 * 4, 0
    for at in range(0, whole, 4):
        total += int.from_bytes(data[at : at + 4], "little", signed=True) * (at // 4 + 1)
    for offset, value in enumerate(data[whole:]):
        total = total * multiplier + value + offset + 1
    return total & mask


def test_words_is_what_its_definition_says() -> None:
    assert tensor_checksum([words(1, 2, 3)], "words") == "words:08d12e6b76c84d1f"
    data = torch.randint(0, 256, (1003,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    for part in (data, data[:400], data[400:401], data[401:401], data[401:]):
        assert tensor_digest(part, "words") == words_by_definition(part.numpy().tobytes())


def test_xxh3_is_that_of_its_specification() -> None:
    """XXH3-64 with seed 0: the empty input's value is in xxHash's own test vectors."""
    assert tensor_digest(torch.empty(0), "xxh3") == 0x2D06800538D394C2
    assert tensor_checksum([]) == "xxh3:" + "0" * 16


@both
def test_every_change_changes_it(algorithm: str) -> None:
    base = torch.arange(64, dtype=torch.uint8)
    sums = {tensor_checksum([base], algorithm)}
    for position in range(64):
        changed = base.clone()
        changed[position] ^= 1
        sums.add(tensor_checksum([changed], algorithm))
    assert len(sums) == 65


@both
@pytest.mark.parametrize("length", [2, 3, 5, 8, 13])
def test_swapped_values_change_it(length: int, algorithm: str) -> None:
    base = torch.arange(1, length + 1, dtype=torch.uint8)
    for i in range(length):
        for j in range(i):
            swapped = base.clone()
            swapped[[i, j]] = base[[j, i]]
            assert tensor_checksum([swapped], algorithm) != tensor_checksum([base], algorithm), (i, j)


@both
def test_moved_boundaries_and_order_change_it(algorithm: str) -> None:
    data = torch.arange(24, dtype=torch.uint8)
    splits = [[data], [data[:8], data[8:]], [data[:12], data[12:]], [data[:8], data[8:16], data[16:]]]
    splits += [[data[:0], data], [data, data[:0]], [data[8:], data[:8]]]
    assert len({tensor_checksum(split, algorithm) for split in splits}) == len(splits)


@both
def test_zeros_of_different_lengths_differ(algorithm: str) -> None:
    assert len({tensor_checksum([torch.zeros(n, dtype=torch.uint8)], algorithm) for n in range(20)}) == 20


@both
def test_type_and_shape_do_not_matter_but_bytes_do(algorithm: str) -> None:
    data = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    expected = tensor_checksum([data], algorithm)
    for view in (data.view(-1), data.view(torch.int32), data.view(torch.uint8), data.view(torch.bfloat16)):
        assert tensor_checksum([view], algorithm) == expected
    assert tensor_checksum([data.double()], algorithm) != expected
    assert tensor_checksum([data.t()], algorithm) == tensor_checksum([data.t().contiguous()], algorithm) != expected


@both
def test_memory_layout_does_not_matter(algorithm: str) -> None:
    data = torch.arange(33, dtype=torch.uint8)
    expected = tensor_checksum([data], algorithm)
    buffer = torch.empty(64, dtype=torch.uint8)
    for start in range(8):
        view = buffer[start : start + 33]
        view.copy_(data)
        assert tensor_checksum([view], algorithm) == expected


def test_chunks_of_a_large_tensor_add_up_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.arange(10_001, dtype=torch.int32).mul(2654435761).view(torch.uint8)
    whole = tensor_checksum([data], "words")
    for chunk in (1000, 7, 4096):
        monkeypatch.setattr("relax_engine.weight_sync.checksum._CHUNK", chunk)
        assert tensor_checksum([data], "words") == whole


@both
@pytest.mark.parametrize("size", [0, 1, 1000, (1 << 19) + 3, 3 << 19])
def test_a_copy_is_hashed_on_the_way(size: int, algorithm: str) -> None:
    source = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(size)).to(torch.uint8)
    target = torch.full((size + 2,), 7, dtype=torch.uint8)
    assert copy_with_digest(target[1:-1], source, algorithm) == tensor_digest(source, algorithm)
    assert torch.equal(target[1:-1], source)
    assert target[0] == target[-1] == 7


def test_a_view_is_hashed_and_copied_by_its_values() -> None:
    base = torch.arange(12.0).view(3, 4)
    for view in (base.t(), base[:, 1:3], base[1]):
        target = torch.empty(view.nbytes, dtype=torch.uint8)
        assert copy_with_digest(target, view, "xxh3") == tensor_digest(view.clone(), "xxh3")
        assert torch.equal(target, byte_view(view))


def test_a_checksum_names_its_algorithm() -> None:
    assert algorithm_for(torch.device("cpu")) == "xxh3"
    assert algorithm_for(torch.device("cuda", 0)) == "words"
    assert algorithm_of(combine([(1, 4)], "words")) == "words"
    for checksum in ("", "0123456789abcdef", "md5:00"):
        with pytest.raises(ValueError, match="no known algorithm; known: xxh3, words"):
            algorithm_of(checksum)


def test_the_digest_of_a_set_of_weights_depends_on_names_and_values_only() -> None:
    held = {"a": 1, "b": 2}
    assert base_digest(held) == base_digest(dict(reversed(held.items())))
    others = [{"a": 2, "b": 1}, {"a": 1}, {"a": 1, "b": 2, "c": 0}, {"a": 1, "bb": 2}, {}]
    assert base_digest(held) not in {base_digest(other) for other in others}
    assert base_digest({}) == ""


def test_threads_do_not_matter() -> None:
    data = torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    try:
        sums = set()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            sums.add(tensor_checksum([data, data[:7]], "words"))
    finally:
        torch.set_num_threads(before)
    assert len(sums) == 1
