"""The checksum of weights: what must change it, and what must not."""

import pytest
import torch

from relax_engine.weight_sync.checksum import tensor_checksum


def words(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def by_definition(parts: list[bytes]) -> str:
    """The documented sum in plain integers; sender and receiver may be different releases and must agree."""
    multiplier, mask, total = 0x9E3779B97F4A7C15, 2**64 - 1, 0
    for data in parts:
        whole, inner = len(data) // 4 * 4, 0
        for at in range(0, whole, 4):
            inner += int.from_bytes(data[at : at + 4], "little", signed=True) * (at // 4 + 1)
        for offset, value in enumerate(data[whole:]):
            inner = inner * multiplier + value + offset + 1
        total = (total * multiplier + len(data) + 1) & mask
        total = (total * multiplier + inner) & mask
    return f"{total:016x}"


def test_it_is_what_its_definition_says() -> None:
    assert tensor_checksum([words(1, 2, 3)]) == by_definition([words(1, 2, 3).numpy().tobytes()]) == "08d12e6b76c84d1f"
    data = torch.randint(0, 256, (1003,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    parts = [data[:400], data[400:401], data[401:401], data[401:]]
    assert tensor_checksum(parts) == by_definition([part.numpy().tobytes() for part in parts])
    assert tensor_checksum([]) == "0" * 16


def test_every_change_changes_it() -> None:
    base = torch.arange(64, dtype=torch.uint8)
    sums = {tensor_checksum([base])}
    for position in range(64):
        changed = base.clone()
        changed[position] ^= 1
        sums.add(tensor_checksum([changed]))
    assert len(sums) == 65


@pytest.mark.parametrize("length", [2, 3, 5, 8, 13])
def test_swapped_values_change_it(length: int) -> None:
    base = torch.arange(1, length + 1, dtype=torch.uint8)
    for i in range(length):
        for j in range(i):
            swapped = base.clone()
            swapped[[i, j]] = base[[j, i]]
            assert tensor_checksum([swapped]) != tensor_checksum([base]), (i, j)


def test_moved_boundaries_and_order_change_it() -> None:
    data = torch.arange(24, dtype=torch.uint8)
    splits = [[data], [data[:8], data[8:]], [data[:12], data[12:]], [data[:8], data[8:16], data[16:]]]
    splits += [[data[:0], data], [data, data[:0]], [data[8:], data[:8]]]
    assert len({tensor_checksum(split) for split in splits}) == len(splits)


def test_zeros_of_different_lengths_differ() -> None:
    assert len({tensor_checksum([torch.zeros(n, dtype=torch.uint8)]) for n in range(20)}) == 20


def test_type_and_shape_do_not_matter_but_bytes_do() -> None:
    data = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    expected = tensor_checksum([data])
    for view in (data.view(-1), data.view(torch.int32), data.view(torch.uint8), data.view(torch.bfloat16)):
        assert tensor_checksum([view]) == expected
    assert tensor_checksum([data.double()]) != expected
    assert tensor_checksum([data.t()]) == tensor_checksum([data.t().contiguous()]) != expected


def test_memory_layout_does_not_matter() -> None:
    data = torch.arange(33, dtype=torch.uint8)
    expected = tensor_checksum([data])
    buffer = torch.empty(64, dtype=torch.uint8)
    for start in range(8):
        view = buffer[start : start + 33]
        view.copy_(data)
        assert tensor_checksum([view]) == expected


def test_chunks_of_a_large_tensor_add_up_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.arange(10_001, dtype=torch.int32).mul(2654435761).view(torch.uint8)
    whole = tensor_checksum([data])
    for chunk in (1000, 7, 4096):
        monkeypatch.setattr("relax_engine.weight_sync.checksum._CHUNK", chunk)
        assert tensor_checksum([data]) == whole


def test_threads_do_not_matter() -> None:
    data = torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    try:
        sums = set()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            sums.add(tensor_checksum([data, data[:7]]))
    finally:
        torch.set_num_threads(before)
    assert len(sums) == 1
