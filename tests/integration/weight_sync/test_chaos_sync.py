"""Many syncs of weights that do not change, with faults between buckets: every engine that commits has the trainer's.

ms-swift#9060: with the learning rate at zero, the engines drifted.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.backends.engines.types import EngineDeadlineError
from relax_engine.weight_sync.buckets import Bucket
from relax_engine.weight_sync.calls import Deadline
from relax_engine.weight_sync.checksum import tensor_checksum
from relax_engine.weight_sync.messages import BucketMeta, Receiver, Source, WeightSyncError
from relax_engine.weight_sync.receivers import EngineReceiver
from relax_engine.weight_sync.sender import WeightSender
from relax_engine.weight_sync.store import WeightStore
from relax_engine.weight_sync.transports.base import Transport
from relax_engine.weight_sync.transports.broadcast import Broadcast
from relax_engine.weight_sync.transports.object_store import ObjectStore
from relax_engine.weight_sync.transports.shared_memory import SharedMemory

DEADLINE_S = 3.0
BUCKET = 1 << 20
FAULTS = ("kill", "refuse", "corrupt", "drop", "hang")


class Victim(EngineReceiver):
    """An engine to which something happens while its second bucket is on its way."""

    def __init__(self, process: EngineProcess, fault: str | None) -> None:
        super().__init__(process.url, DEADLINE_S)
        self.process, self.fault, self.seen = process, fault, 0

    async def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
        self.seen += 1
        if self.seen != 2 or self.fault is None:
            return await EngineReceiver.receive(self, bucket, sources)
        if self.fault == "kill":
            self.process.process.kill()
        if self.fault == "hang":
            os.kill(self.process.pid, signal.SIGSTOP)
        if self.fault == "refuse":
            bucket = BucketMeta(bucket.tensors, "xxh3:" + "0" * 16)
        if self.fault == "drop":
            async with asyncio.timeout(0.005):
                await EngineReceiver.receive(self, bucket, sources)
        return await EngineReceiver.receive(self, bucket, sources)

    async def pull(self, url: str, version: int) -> None:
        """The same faults where buckets do not come one by one."""
        if self.fault == "kill":
            self.process.process.kill()
        if self.fault == "hang":
            os.kill(self.process.pid, signal.SIGSTOP)
        if self.fault == "refuse":
            url += "-of-another-run"
        if self.fault == "drop":
            async with asyncio.timeout(0.0):
                await EngineReceiver.pull(self, url, version)
        await EngineReceiver.pull(self, url, version)


class Faulty:
    """A transport that flips one bit of the second bucket when it is told to."""

    def __init__(self, inner: Transport) -> None:
        self.inner, self.corrupt, self.sent = inner, False, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def send(self, receivers: Sequence[Receiver], bucket: Bucket, deadline: Deadline) -> None:
        self.sent += 1
        if self.corrupt and self.sent == 2:
            bucket.data[len(bucket.data) // 3] ^= 16
        await self.inner.send(receivers, bucket, deadline)


class Fleet:
    """Two engines, replaced when they die, and what is known of them."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.engines = [self.launch(), self.launch()]

    def launch(self) -> EngineProcess:
        return launch_engine(self.model, max_total_tokens=8000, extra_args={"dist_timeout": DEADLINE_S})

    def replace_dead(self) -> None:
        for place, engine in enumerate(self.engines):
            if engine.process.poll() is not None:
                engine.close()
                self.engines[place] = self.launch()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


@pytest.fixture
def fleet(old_model: Path) -> Iterator[Fleet]:
    fleet = Fleet(old_model)
    yield fleet
    fleet.close()


async def holds(engine: EngineProcess, version: int, checksum: str) -> None:
    """The engine serves this version, and its weights are these."""
    async with EngineClient(engine.url, timeout_s=10) as client:
        assert (await client.generate([1, 2, 3], {"max_new_tokens": 2})).weight_version == str(version)
        assert await client.weights_checksum() == checksum


async def serves_nothing(engine: EngineProcess, version: int) -> None:
    """A living engine that failed answers no request, and does not claim the version."""
    async with EngineClient(engine.url, timeout_s=10) as client:
        assert (await client.model_info())["weight_version"] != str(version)
        with pytest.raises(EngineDeadlineError):
            await client.generate([1, 2, 3], {"max_new_tokens": 2}, deadline_s=0.5)


async def storm(fleet: Fleet, named: list[tuple[str, Tensor]], store: Path, faults: list[str | None]) -> Counter[str]:
    """One sync for each of `faults`, transports and modes in turn; returns how often each outcome was seen."""
    expected = tensor_checksum(tensor for _, tensor in named)
    transports = [
        Faulty(Broadcast("127.0.0.1")),
        Faulty(SharedMemory()),
        Faulty(ObjectStore(WeightStore(str(store)))),
    ]
    senders = [
        WeightSender(transport, bucket_bytes=BUCKET, timeout_s=DEADLINE_S, delta=delta)
        for delta in (False, True)
        for transport in transports
    ]
    seen: Counter[str] = Counter()
    for version, fault in enumerate(faults, start=1):
        sender = senders[version % len(senders)]
        assert isinstance(sender.transport, Faulty)
        sender.transport.corrupt, sender.transport.sent = fault == "corrupt", 0
        victim = Victim(fleet.engines[version % 2], fault)
        receivers = [victim, EngineReceiver(fleet.engines[1 - version % 2].url, DEADLINE_S)]
        try:
            report = await sender.push(lambda: iter(named), receivers, version)
        except WeightSyncError:
            assert fault == "corrupt"
            seen["nobody committed"] += 1
            for engine in fleet.engines:
                await serves_nothing(engine, version)
            continue
        if fault == "hang":
            os.kill(victim.process.pid, signal.SIGCONT)
        for engine in fleet.engines:
            if engine.url in report.committed:
                await holds(engine, version, expected)
                seen["committed"] += 1
            elif engine.process.poll() is None:
                await serves_nothing(engine, version)
                seen["quarantined"] += 1
            else:
                seen["dead"] += 1
        await asyncio.to_thread(fleet.replace_dead)
    for sender in senders:
        await sender.close([EngineReceiver(engine.url, DEADLINE_S) for engine in fleet.engines])
    return seen


async def test_faults_between_buckets_of_every_transport(fleet: Fleet, new_model: Path, tmp_path: Path) -> None:
    named = sorted(load_file(new_model / "model.safetensors").items())
    faults: list[str | None] = [None, "refuse", "drop", None, "kill", "refuse", "corrupt", None, "drop", None, "hang"]
    seen = await storm(fleet, named, tmp_path, faults)
    assert seen["committed"] >= len(faults)
    assert seen["quarantined"] >= 3
    assert seen["dead"] == 1


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_two_hundred_syncs_in_a_storm(fleet: Fleet, new_model: Path, tmp_path: Path) -> None:
    named = sorted(load_file(new_model / "model.safetensors").items())
    draw = random.Random(0)
    faults = [draw.choice(FAULTS) if draw.random() < 0.3 else None for _ in range(200)]
    seen = await storm(fleet, named, tmp_path, faults)
    assert seen["committed"] >= 200
    assert seen["quarantined"] >= 20
    assert seen["dead"] >= 5
