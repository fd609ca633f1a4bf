"""Whole weight syncs: a real sender, real engine processes, a real gloo group."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, Receiver
from relax_engine.weight_sync.receivers import EngineReceiver
from relax_engine.weight_sync.sender import WeightSender, WeightSyncError

BUCKET = 1 << 20
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


@pytest.fixture
async def sender(pair: list[EngineProcess], old_model: Path) -> AsyncIterator[WeightSender]:
    """A sender to engines that hold the old weights as version 0; the group is left at the end."""
    for engine in pair:
        async with EngineClient(engine.url, timeout_s=TIMEOUT) as client:
            await client.update_weights_from_disk(str(old_model), version=0)
    sender = WeightSender(host="127.0.0.1", bucket_bytes=BUCKET, timeout_s=TIMEOUT)
    yield sender
    await sender.close(receivers(pair))


async def test_all_engines_commit_the_same_weights(
    sender: WeightSender, pair: list[EngineProcess], new_model: Path
) -> None:
    before = [await state(engine) for engine in pair]
    report = await sender.push(tensors_of(new_model), receivers(pair), 7)
    after = [await state(engine) for engine in pair]
    assert report.committed == [engine.url for engine in pair]
    assert report.quarantined == {}
    assert after[0] == after[1]
    assert after[0][0] == "7"
    assert before[0][1] == before[1][1] != after[0][1]
    total = sum(tensor.nbytes for _, tensor in tensors_of(new_model)())
    assert (report.version, report.nbytes) == (7, total)
    assert math.ceil(total / BUCKET) <= report.buckets <= math.ceil(total / BUCKET) + 1
    assert report.gigabytes_per_second > 0


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
    pair: list[EngineProcess], sender: WeightSender, old_model: Path, new_model: Path
) -> None:
    class Damaging(WeightSender):
        """Flips one bit of the second bucket on its way."""

        sent = 0

        async def _transfer(self, receivers: Sequence[Receiver], meta: BucketMeta, flat: Tensor) -> None:
            self.sent += 1
            if self.sent == 2:
                flat[flat.numel() // 2] ^= 4
            await super()._transfer(receivers, meta, flat)

    before = [await state(engine) for engine in pair]
    damaging = Damaging(host="127.0.0.1", bucket_bytes=BUCKET, timeout_s=TIMEOUT)
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

        async def receive(self, bucket: BucketMeta, address: GroupAddress) -> None:
            await EngineReceiver.receive(self, BucketMeta(bucket.tensors, "0" * 16), address)

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
