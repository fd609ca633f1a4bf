"""Weights into a training rank: a model that needs every tensor, whatever part of them is sent."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relax_engine.weight_sync.arrival import DamagedBucketError
from relax_engine.weight_sync.checksum import tensor_checksum
from relax_engine.weight_sync.inbox import WeightInbox
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, Source, WeightSyncError
from relax_engine.weight_sync.sender import WeightSender
from relax_engine.weight_sync.store import WeightStore
from relax_engine.weight_sync.transports.base import Transport
from relax_engine.weight_sync.transports.object_store import ObjectStore
from relax_engine.weight_sync.transports.shared_memory import SharedMemory

Named = Iterable[tuple[str, Tensor]]


class Model:
    """Parameters that merge two tensors each, like fused projections; loading wants all of them, once."""

    def __init__(self) -> None:
        self.merged = {f"m{i}": torch.zeros(2, 300) for i in range(6)}

    def load(self, tensors: Named) -> None:
        waiting: dict[str, Tensor] = {}
        for name, tensor in tensors:
            assert name not in waiting, f"{name} came twice"
            waiting[name] = tensor
            parts = [f"{name[:2]}.{side}" for side in "ab"]
            if all(part in waiting for part in parts):
                self.merged[name[:2]].copy_(torch.stack([waiting[part] for part in parts]))
        missing = {name for name, _ in self.tensors()} - waiting.keys()
        if missing:
            raise KeyError(f"missing {sorted(missing)}")

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.merged.items():
            yield f"{name}.a", value[0]
            yield f"{name}.b", value[1]


class Rank:
    """A training rank in this process, as a receiver."""

    name, processes = "rank", 1

    def __init__(self, model: Model) -> None:
        self.inbox = WeightInbox(model.load, model.tensors, timeout_s=10)
        self.received: list[str] = []
        self.damage = False

    def answered(self, error: BaseException) -> bool:
        return True

    async def join(self, address: GroupAddress, rank: int) -> None: ...

    async def leave(self, address: GroupAddress) -> None: ...

    async def begin(self) -> str:
        self.received = []
        return await asyncio.to_thread(self.inbox.begin)

    async def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
        self.received += [tensor.name for tensor in bucket.tensors]
        if self.damage:
            bucket = BucketMeta(bucket.tensors, "xxh3:" + "0" * 16)
        await asyncio.to_thread(self.inbox.receive, bucket, sources[0])

    async def pull(self, url: str, version: int) -> None:
        await asyncio.to_thread(self.inbox.pull, url)

    async def commit(self, version: int) -> None:
        await asyncio.to_thread(self.inbox.end)

    async def quarantine(self) -> None: ...

    async def close(self) -> None: ...


def weights(seed: int) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(f"m{i}.{side}", torch.randn(300, generator=generator)) for i in range(6) for side in "ab"]


def checksum(named: Named) -> str:
    return tensor_checksum(tensor for _, tensor in named)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def rank(model: Model) -> Rank:
    return Rank(model)


@pytest.mark.parametrize("name", ["shared_memory", "object_store"])
async def test_what_is_not_sent_comes_from_the_model_itself(
    name: str, model: Model, rank: Rank, tmp_path: Path
) -> None:
    transport: Transport = SharedMemory() if name == "shared_memory" else ObjectStore(WeightStore(str(tmp_path)))
    sender = WeightSender(transport, bucket_bytes=3000, timeout_s=10, delta=True)
    named = weights(0)
    await sender.push(lambda: iter(named), [rank], 1)
    assert checksum(model.tensors()) == checksum(named)
    # One half of a merged parameter changes, and later nothing.
    changed = [(key, tensor + 1 if key == "m3.b" else tensor) for key, tensor in named]
    for version in (2, 3):
        report = await sender.push(lambda: iter(changed), [rank], version)
        assert report.nbytes == (1200 if version == 2 else 0)
        assert report.skipped_nbytes == 12 * 1200 - report.nbytes
        assert checksum(model.tensors()) == checksum(changed)


async def test_an_unfinished_update_leaves_nothing_that_a_delta_could_build_on(model: Model, rank: Rank) -> None:
    sender = WeightSender(SharedMemory(), bucket_bytes=3000, timeout_s=10, delta=True)
    named, others = weights(0), weights(1)
    await sender.push(lambda: iter(named), [rank], 1)
    rank.damage = True
    with pytest.raises(WeightSyncError, match="checksum of the bucket"):
        await sender.push(lambda: iter(others), [rank], 2)
    rank.damage = False
    report = await sender.push(lambda: iter(named), [rank], 3)
    assert report.nbytes == 12 * 1200
    assert checksum(model.tensors()) == checksum(named)


async def test_a_tensor_that_never_comes_is_an_error(rank: Rank) -> None:
    sender = WeightSender(SharedMemory(), bucket_bytes=3000, timeout_s=10)
    with pytest.raises(WeightSyncError, match=r"missing \[.*m5\.b"):
        await sender.push(lambda: iter(weights(0)[:-1]), [rank], 1)
    report = await sender.push(lambda: iter(weights(0)), [rank], 2)
    assert report.committed == ["rank"]


def test_a_load_that_fails_early_stops_the_buckets(rank: Rank) -> None:
    """The loader's thread has ended; what comes after must neither wait for it nor fail for another reason."""

    def load(tensors: Named) -> None:
        next(iter(tensors))
        raise KeyError("unexpected tensor")

    inbox = WeightInbox(load, lambda: [], timeout_s=10)
    inbox.begin()
    inbox._put((str(i), torch.zeros(1)) for i in range(100))
    with pytest.raises(KeyError, match="unexpected tensor"):
        inbox.end()


def test_a_damaged_bucket_is_refused(rank: Rank) -> None:
    from relax_engine.weight_sync.buckets import Packer, Staging
    from relax_engine.weight_sync.messages import SharedTensors
    from relax_engine.weight_sync.shared import ALIGNMENT, share_tensors, shared_buffer

    rank.inbox.begin()
    (bucket,) = Packer(Staging(1 << 20, shared_buffer), {}, alignment=ALIGNMENT).pack(weights(0))
    bucket.data[100] ^= 1
    with pytest.raises(DamagedBucketError, match=r"'m0\.a'\.\.'m5\.b'"):
        rank.inbox.receive(bucket.meta, SharedTensors(share_tensors(bucket)))
