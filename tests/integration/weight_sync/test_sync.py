"""Whole weight syncs: a real sender, real engine processes, a real gloo group."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.weight_sync.buckets import Bucket
from relax_engine.weight_sync.calls import Deadline
from relax_engine.weight_sync.checksum import tensor_checksum
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, Receiver, Source, WeightSyncError
from relax_engine.weight_sync.receivers import EngineReceiver
from relax_engine.weight_sync.sender import WeightSender
from relax_engine.weight_sync.store import WeightStore
from relax_engine.weight_sync.transports.base import Transport
from relax_engine.weight_sync.transports.broadcast import Broadcast
from relax_engine.weight_sync.transports.object_store import ObjectStore
from relax_engine.weight_sync.transports.shared_memory import SharedMemory

BUCKET = 1 << 20
TRANSPORTS = ["broadcast", "shared_memory", "object_store"]
TIMEOUT = 20.0
PROMPT = list(b"reverse abc")


def tensors_of(directory: Path) -> Callable[[], Iterator[tuple[str, Tensor]]]:
    named = sorted(load_file(directory / "model.safetensors").items())
    return lambda: iter(named)


def receivers(engines: list[EngineProcess]) -> list[EngineReceiver]:
    return [EngineReceiver(engine.url, TIMEOUT) for engine in engines]


async def state(engine: EngineProcess) -> tuple[str, str]:
    """Version and checksum of what the engine serves."""
    async with EngineClient(engine.url, timeout_s=TIMEOUT) as client:
        return (await client.model_info())["weight_version"], await client.weights_checksum()


@pytest.fixture(scope="module")
def pair(launch: Callable[[int], list[EngineProcess]]) -> list[EngineProcess]:
    return launch(2)


def transport(name: str, store: Path) -> Transport:
    if name == "shared_memory":
        return SharedMemory()
    return ObjectStore(WeightStore(str(store))) if name == "object_store" else Broadcast("127.0.0.1")


@pytest.fixture
async def make_sender(
    pair: list[EngineProcess], old_model: Path, tmp_path: Path
) -> AsyncIterator[Callable[..., WeightSender]]:
    """Senders to engines that hold the old weights as version 0; all groups are left at the end."""
    for engine in pair:
        async with EngineClient(engine.url, timeout_s=TIMEOUT) as client:
            await client.update_weights_from_disk(str(old_model), version=0)
    made: list[WeightSender] = []

    def make(name: str = "broadcast", **options: Any) -> WeightSender:
        sender = WeightSender(transport(name, tmp_path / "store"), bucket_bytes=BUCKET, timeout_s=TIMEOUT, **options)
        made.append(sender)
        return sender

    yield make
    for sender in made:
        await sender.close(receivers(pair))


@pytest.fixture
def sender(make_sender: Callable[..., WeightSender]) -> WeightSender:
    return make_sender()


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_all_engines_commit_the_same_weights(
    name: str, make_sender: Callable[..., WeightSender], pair: list[EngineProcess], new_model: Path
) -> None:
    before = [await state(engine) for engine in pair]
    report = await make_sender(name).push(tensors_of(new_model), receivers(pair), 7)
    after = [await state(engine) for engine in pair]
    assert report.committed == [engine.url for engine in pair]
    assert report.quarantined == {}
    assert after[0] == after[1] == ("7", tensor_checksum(tensor for _, tensor in tensors_of(new_model)()))
    assert before[0][1] == before[1][1] != after[0][1]
    total = sum(tensor.nbytes for _, tensor in tensors_of(new_model)())
    assert (report.version, report.nbytes) == (7, total)
    assert math.ceil(total / BUCKET) <= report.buckets <= math.ceil(total / BUCKET) + 1
    assert BUCKET < report.staging_nbytes <= 2 * BUCKET
    assert report.metrics()["weight_sync/gigabytes_per_second"] > 0


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_only_what_changed_is_sent_to_engines_that_hold_the_rest(
    name: str, make_sender: Callable[..., WeightSender], pair: list[EngineProcess], new_model: Path, old_model: Path
) -> None:
    """And everything as soon as one of them holds anything else, which its version does not tell."""
    named = [*tensors_of(new_model)()]
    total = sum(tensor.nbytes for _, tensor in named)
    changed = [(key, tensor + 1 if key == "model.norm.weight" else tensor) for key, tensor in named]
    norm = dict(named)["model.norm.weight"].nbytes
    sender = make_sender(name, delta=True)
    sent = [
        await sender.push(lambda content=content: iter(content), receivers(pair), version)
        for version, content in enumerate((named, named, changed), start=1)
    ]
    assert [(report.nbytes, report.skipped_nbytes) for report in sent] == [(total, 0), (0, total), (norm, total - norm)]
    expected = tensor_checksum(tensor for _, tensor in changed)
    assert [await state(engine) for engine in pair] == [("3", expected)] * 2
    async with EngineClient(pair[1].url, timeout_s=TIMEOUT) as client:
        await client.update_weights_from_disk(str(old_model), version=3)
    report = await sender.push(lambda: iter(changed), receivers(pair), 4)
    # A stored version names every tensor's file, so that nothing has to be written for the engine that lags.
    assert report.nbytes == (0 if name == "object_store" else total)
    assert [await state(engine) for engine in pair] == [("4", expected)] * 2


async def test_an_engine_that_comes_late_starts_with_the_newest_stored_version(
    make_sender: Callable[..., WeightSender],
    pair: list[EngineProcess],
    old_model: Path,
    new_model: Path,
    tmp_path: Path,
) -> None:
    """And the trainer finds that it has nothing to send to it."""
    named = [*tensors_of(new_model)()]
    sender = make_sender("object_store", delta=True)
    await sender.push(lambda: iter(named), receivers(pair), 3)
    with launch_engine(old_model, max_total_tokens=8000, weight_store=str(tmp_path / "store")) as late:
        assert await state(late) == ("3", tensor_checksum(tensor for _, tensor in named))
        report = await sender.push(lambda: iter(named), receivers([*pair, late]), 4)
        assert report.committed == [engine.url for engine in [*pair, late]]
        assert report.nbytes == 0
        assert (await state(late))[0] == "4"


async def test_an_engine_receives_into_the_memory_of_the_version_before_the_last(
    sender: WeightSender, pair: list[EngineProcess], new_model: Path
) -> None:
    engine = pair[:1]
    async with EngineClient(engine[0].url, timeout_s=TIMEOUT) as client:

        async def buffers() -> int:
            return int((await client.server_info())["weight_buffer_bytes"])

        await client.release_memory()
        await client.resume_memory()
        assert await buffers() == 0
        await sender.push(tensors_of(new_model), receivers(engine), 1)
        one = await buffers()
        sizes = []
        for version in (2, 3, 4):
            await sender.push(tensors_of(new_model), receivers(engine), version)
            sizes.append(await buffers())
        assert sizes == [sizes[0]] * 3
        total = sum(tensor.nbytes for _, tensor in tensors_of(new_model)())
        assert total <= one < sizes[0] <= 2 * one
        # Memory that an engine gives back includes what it kept for the next sync.
        await client.release_memory()
        assert await buffers() < sizes[0]
        await client.resume_memory()


async def test_compressed_buckets_arrive_whole(
    make_sender: Callable[..., WeightSender], pair: list[EngineProcess], new_model: Path
) -> None:
    named = [(key, tensor.bfloat16()) for key, tensor in tensors_of(new_model)()]
    report = await make_sender(compress=True).push(lambda: iter(named), receivers(pair), 5)
    assert report.payload_nbytes < 0.8 * report.nbytes
    expected = tensor_checksum(tensor.float() for _, tensor in named)
    assert [await state(engine) for engine in pair] == [("5", expected)] * 2


async def test_a_second_push_is_refused_while_one_is_under_way(
    sender: WeightSender, pair: list[EngineProcess], new_model: Path
) -> None:
    first = asyncio.create_task(sender.push(tensors_of(new_model), receivers(pair), 1))
    await asyncio.sleep(0)
    with pytest.raises(WeightSyncError, match="version 2 was asked for while that to 1 is under way"):
        await sender.push(tensors_of(new_model), receivers(pair), 2)
    assert (await first).version == 1
    assert (await sender.push(tensors_of(new_model), receivers(pair), 3)).version == 3


async def test_requests_are_as_many_as_buckets_and_a_constant(
    sender: WeightSender, pair: list[EngineProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl#3766: not one for each tensor."""
    calls: list[str] = []
    once = EngineClient._once

    async def counted(self: EngineClient, endpoint: str, body: Any) -> Any:
        calls.append(endpoint)
        return await once(self, endpoint, body)

    monkeypatch.setattr(EngineClient, "_once", counted)
    async with EngineClient(pair[0].url, timeout_s=TIMEOUT) as client:
        base = await client.model_info()
    assert base["weight_version"] == "0"
    calls.clear()
    report = await sender.push(tensors_of(Path(base["model_path"])), receivers(pair[:1]), 1)
    # join, pause, begin, a bucket each, end, flush, continue
    assert len(calls) == report.buckets + 6


async def test_engines_compute_what_hugging_face_computes_with_the_new_weights(
    sender: WeightSender, pair: list[EngineProcess], new_model: Path
) -> None:
    from transformers import AutoModelForCausalLM

    await sender.push(tensors_of(new_model), receivers(pair), 1)
    rows = [PROMPT, list(b"another, longer sequence of tokens")]
    model = AutoModelForCausalLM.from_pretrained(new_model, dtype=torch.float32)
    for engine in pair:
        async with EngineClient(engine.url, timeout_s=TIMEOUT) as client:
            scored = await client.score(rows)
        for row, log_probs in zip(rows, scored, strict=True):
            with torch.no_grad():
                expected = torch.log_softmax(model(torch.tensor([row])).logits[0, :-1], -1)
            expected = expected.gather(1, torch.tensor(row[1:])[:, None])[:, 0].numpy()
            assert np.abs(expected - log_probs).max() < 1e-4


async def test_the_group_is_used_again_and_five_syncs_of_the_same_weights_change_nothing(
    sender: WeightSender, pair: list[EngineProcess], new_model: Path
) -> None:
    """ms-swift#9060: with the learning rate at zero, the engines drifted."""
    joined = []

    class Counting(EngineReceiver):
        async def join(self, address: GroupAddress, rank: int) -> None:
            joined.append(address.name)
            await EngineReceiver.join(self, address, rank)

    sums = set()
    for version in range(1, 6):
        report = await sender.push(tensors_of(new_model), [Counting(e.url, TIMEOUT) for e in pair], version)
        assert len(report.committed) == 2
        states = {await state(engine) for engine in pair}
        assert {served for served, _ in states} == {str(version)}
        sums |= {checksum for _, checksum in states}
    assert len(sums) == 1
    assert len(joined) == 2


async def test_a_bucket_that_arrives_damaged_is_refused_by_everyone(
    pair: list[EngineProcess], sender: WeightSender, new_model: Path
) -> None:
    class Damaging(Broadcast):
        """Flips one bit of the second bucket on its way."""

        sent = 0

        async def send(self, receivers: Sequence[Receiver], bucket: Bucket, deadline: Deadline) -> None:
            self.sent += 1
            if self.sent == 2:
                bucket.data[bucket.data.numel() // 2] ^= 4
            await super().send(receivers, bucket, deadline)

    before = [await state(engine) for engine in pair]
    damaging = WeightSender(Damaging("127.0.0.1"), bucket_bytes=BUCKET, timeout_s=TIMEOUT)
    with pytest.raises(WeightSyncError, match=r"version 3 failed on every receiver: .*checksum of the bucket"):
        await damaging.push(tensors_of(new_model), receivers(pair), 3)
    assert [await state(engine) for engine in pair] == before
    # Nothing is left over that would stand in the way of the next sync.
    report = await sender.push(tensors_of(new_model), receivers(pair), 4)
    assert len(report.committed) == 2
    assert {(await state(engine))[0] for engine in pair} == {"4"}


async def test_an_engine_that_gets_a_damaged_bucket_does_not_take_the_others_down(
    sender: WeightSender, pair: list[EngineProcess], new_model: Path
) -> None:
    class Deaf(EngineReceiver):
        """Receives other bytes than were sent, as far as its checksum can tell."""

        async def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
            await EngineReceiver.receive(self, BucketMeta(bucket.tensors, "xxh3:" + "0" * 16), sources)

    good, bad = pair
    before = await state(bad)
    report = await sender.push(tensors_of(new_model), [EngineReceiver(good.url, TIMEOUT), Deaf(bad.url, TIMEOUT)], 5)
    assert report.committed == [good.url]
    assert "checksum of the bucket" in report.quarantined[bad.url]
    assert (await state(good))[0] == "5"
    assert await state(bad) == before


async def test_no_request_in_flight_is_lost(sender: WeightSender, pair: list[EngineProcess], new_model: Path) -> None:
    """slime#2168; the versions of every token are recorded (rllm#622)."""
    engine = pair[0]
    params = [
        {"max_new_tokens": 200, "ignore_eos": True, "temperature": 1.0, "sampling_seed": seed} for seed in range(32)
    ]
    async with EngineClient(engine.url, timeout_s=60) as client:
        requests = [asyncio.create_task(client.generate_batch([PROMPT], [params[i]])) for i in range(32)]
        async with asyncio.timeout(20):
            while (await client.loads())[0]["num_running_reqs"] < 32:
                await asyncio.sleep(0.005)
        report = await sender.push(tensors_of(new_model), receivers(pair), 1)
        outputs = [output for request in requests for output in await request]
    assert report.quarantined == {}
    for output in outputs:
        assert len(output.output_ids) == len(output.log_probs) == 200
        assert np.isfinite(output.log_probs).all()
        first, second = output.weight_versions
        assert (first.version, first.start, second.version, second.end) == ("0", 0, "1", 200)
        assert first.end == second.start > 0
