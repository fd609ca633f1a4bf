"""Tensors passed by handle: what comes out, and what is refused."""

import multiprocessing
import pickle
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
import torch

from relax_engine.weight_sync.buckets import Bucket, Packer, Staging
from relax_engine.weight_sync.shared import ALIGNMENT, SharedReader, open_tensors, share_tensors, shared_buffer

NAMED = [
    ("odd", torch.arange(7, dtype=torch.int8)),
    ("half", torch.arange(5).to(torch.bfloat16)),
    ("empty", torch.empty(0, 3)),
    ("scalar", torch.tensor(2.5)),
    ("wide", torch.randn(3, 4, generator=torch.Generator().manual_seed(0))),
]


def bucket() -> Bucket:
    (packed,) = Packer(Staging(1 << 20, shared_buffer), {}, alignment=ALIGNMENT).pack(NAMED)
    return packed


def test_tensors_of_every_kind_are_opened_where_they_lie() -> None:
    packed = bucket()
    opened = open_tensors(share_tensors(packed))
    for (name, tensor), (sent_name, sent) in zip(opened, NAMED, strict=True):
        assert (name, tensor.dtype, tensor.shape) == (sent_name, sent.dtype, sent.shape)
        assert torch.equal(tensor, sent)
    packed.data.zero_()
    assert dict(opened)["wide"].abs().sum() == 0


def test_each_reader_has_handles_of_its_own() -> None:
    packed = bucket()
    first, second = share_tensors(packed), share_tensors(packed)
    for handles in (first, second, share_tensors(packed)):
        assert torch.equal(dict(open_tensors(handles))["wide"], NAMED[-1][1])


def test_the_sharing_strategy_of_the_process_stays() -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    share_tensors(bucket())
    assert torch.multiprocessing.get_sharing_strategy() == before == "file_descriptor"


def mapped() -> int:
    """Buckets of shared memory that this process has mapped."""
    return sum("/torch_" in line for line in Path("/proc/self/maps").read_text().splitlines())


def in_another_process(handles: "Queue[bytes | None]", counts: "Queue[int]") -> None:
    reader = SharedReader()
    while (serialized := handles.get()) is not None:
        tensors = reader.open(serialized)
        assert torch.equal(dict(tensors)["wide"], NAMED[-1][1])
        del tensors
        counts.put(mapped())
    reader.close()
    counts.put(mapped())


def test_a_reader_keeps_the_two_last_buffers_mapped() -> None:
    context = multiprocessing.get_context("spawn")
    handles, counts = context.Queue(), context.Queue()
    process = context.Process(target=in_another_process, args=(handles, counts))
    process.start()
    buckets = [bucket() for _ in range(3)]
    for packed, expected in zip([*buckets, buckets[2], buckets[1]], [1, 2, 2, 2, 2], strict=True):
        handles.put(share_tensors(packed))
        assert counts.get(timeout=60) == expected
    handles.put(None)
    assert counts.get(timeout=60) == 0
    process.join(60)


class Call:
    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple:
        return self.function, self.arguments


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Call(eval, "1 + 1")), "builtins.eval is not part of a tensor"),
        (pickle.dumps([("a", Call(getattr, "text", "upper"))]), "builtins.getattr is not part of a tensor"),
        (pickle.dumps(torch.load), "torch.serialization.load is not part"),
        (pickle.dumps([("a", 1)]), r"a list of \(name, tensor\) pairs"),
        (pickle.dumps({"a": 1}), r"a list of \(name, tensor\) pairs"),
        (b"", "cannot be opened in this process"),
        (b"\x80\x05garbage", "cannot be opened in this process"),
    ],
)
def test_nothing_but_tensors_is_opened(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_tensors(content)
