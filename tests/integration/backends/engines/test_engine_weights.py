"""Weight updates over a real gloo group, and what requests in flight see of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from engine_models import CONTEXT, Reference
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import ProcessGroup

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.backends.engines.types import EngineRefusedError
from relax_engine.weight_sync.buckets import Packer, Staging
from relax_engine.weight_sync.group import MeetingPoint, join_group, leave_group
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress

PROMPT = [5, 17, 33, 8, 61, 70]
LONG = {"max_new_tokens": CONTEXT - 10, "ignore_eos": True, "sampling_seed": 11}


@pytest.fixture(scope="module")
def served(model_of: Callable[..., Path]) -> Iterator[EngineProcess]:
    with launch_engine(model_of("qwen3"), max_total_tokens=8000, extra_args={"dist_timeout": 4}) as process:
        yield process


@pytest.fixture(scope="module")
def old(model_of: Callable[..., Path]) -> Reference:
    return Reference(model_of("qwen3"))


@pytest.fixture(scope="module")
def new(model_of: Callable[..., Path]) -> Reference:
    return Reference(model_of("qwen3", seed=1))


@pytest.fixture
async def client(served: EngineProcess, model_of: Callable[..., Path]) -> AsyncIterator[EngineClient]:
    """A client of the engine with its first weights, version 0."""
    async with EngineClient(served.url, timeout_s=60) as client:
        await client.update_weights_from_disk(str(model_of("qwen3")), version=0)
        yield client
        await client.resume()


def tensors(directory: Path) -> list[tuple[str, Tensor]]:
    return sorted(load_file(directory / "model.safetensors").items())


def buckets(named: list[tuple[str, Tensor]], limit: int = 1 << 30) -> Iterator[tuple[BucketMeta, Tensor]]:
    staging = Staging(limit, lambda nbytes: torch.empty(nbytes, dtype=torch.uint8))
    return ((bucket.meta, bucket.data) for bucket in Packer(staging, {}).pack(named))


def flatten(named: list[tuple[str, Tensor]]) -> tuple[BucketMeta, Tensor]:
    return next(buckets(named))


@asynccontextmanager
async def update_group(client: EngineClient, name: str) -> AsyncIterator[tuple[ProcessGroup, GroupAddress]]:
    """The trainer's side of a group with this engine."""
    meeting = MeetingPoint("127.0.0.1")
    address = GroupAddress("127.0.0.1", meeting.port, name, 2, "gloo")
    joining = asyncio.create_task(asyncio.to_thread(join_group, address, 0, timeout_s=20))
    await client.init_weights_group(address, 1)
    group = await joining
    try:
        yield group, address
    finally:
        leave_group(group)


async def send(
    client: EngineClient, group: ProcessGroup, address: GroupAddress, meta: BucketMeta, flat: Tensor, version: int
) -> None:
    broadcast = asyncio.create_task(asyncio.to_thread(dist.broadcast, flat, 0, group))
    try:
        await client.update_weights_from_distributed(meta, address.name, version=version)
    finally:
        await broadcast


async def push(client: EngineClient, group: ProcessGroup, address: GroupAddress, directory: Path, version: int) -> None:
    await client.begin_weight_update()
    for meta, flat in buckets(tensors(directory), 60_000):
        await send(client, group, address, meta, flat, version)
    assert (await client.model_info())["weight_version"] != str(version), "the version changes at the end only"
    await client.end_weight_update(version)


async def in_flight(client: EngineClient) -> asyncio.Task:
    task = asyncio.create_task(client.generate(PROMPT, LONG))
    async with asyncio.timeout(20):
        while (await client.loads())[0]["num_running_reqs"] == 0:
            await asyncio.sleep(0.005)
    return task


async def test_retract_then_update_recomputes_the_prefix_under_the_new_weights(
    client: EngineClient, model_of: Callable[..., Path], old: Reference, new: Reference
) -> None:
    async with update_group(client, "retract") as (group, address):
        task = await in_flight(client)
        await client.pause("retract")
        await push(client, group, address, model_of("qwen3", seed=1), 7)
        await client.flush_cache()
        await client.resume()
        output = await task
        await client.destroy_weights_group(address.name)
    first, second = output.weight_versions
    assert (first.version, first.start, second.version, second.end) == ("0", 0, "7", LONG["max_new_tokens"])
    assert first.end == second.start > 0
    ids, cut = output.output_ids.tolist(), first.end
    assert np.abs(old.log_probs(PROMPT, ids, 1.0) - output.log_probs)[:cut].max() < 1e-4
    assert np.abs(new.log_probs(PROMPT, ids, 1.0) - output.log_probs)[cut:].max() < 1e-4
    assert output.num_retractions == 1
    assert (await client.model_info())["weight_version"] == "7"


async def test_an_update_without_flush_keeps_the_old_cache(
    client: EngineClient, model_of: Callable[..., Path], old: Reference, new: Reference
) -> None:
    task = await in_flight(client)
    await client.pause("in_place")
    await client.update_weights_from_disk(str(model_of("qwen3", seed=1)), version=8, flush_cache=False)
    await client.resume()
    output = await task
    cut = output.weight_versions[0].end
    ids = output.output_ids.tolist()
    assert np.abs(old.log_probs(PROMPT, ids, 1.0) - output.log_probs)[:cut].max() < 1e-4
    # The tokens after the update are drawn from new weights over keys and values of the old ones.
    assert np.abs(new.log_probs(PROMPT, ids, 1.0) - output.log_probs)[cut:].max() > 0.05
    assert [span.version for span in output.weight_versions] == ["0", "8"]
    assert output.num_retractions == 0


async def test_a_corrupted_bucket_leaves_the_old_weights(
    client: EngineClient, model_of: Callable[..., Path], old: Reference, new: Reference
) -> None:
    directory = model_of("qwen3", seed=1)
    checksum = await client.weights_checksum()
    async with update_group(client, "corrupt") as (group, address):
        await client.begin_weight_update()
        meta, flat = flatten(tensors(directory))
        damaged = flat.clone()
        damaged[1234] ^= 1
        with pytest.raises(EngineRefusedError, match=rf"400: checksum of the bucket .* {meta.checksum}"):
            await send(client, group, address, meta, damaged, 9)
        with pytest.raises(EngineRefusedError, match="weight update is failed"):
            await client.end_weight_update(9)
        assert (await client.model_info())["weight_version"] == "0"
        assert await client.weights_checksum() == checksum
        output = await client.generate(PROMPT, {**LONG, "max_new_tokens": 20})
        assert np.abs(old.log_probs(PROMPT, output.output_ids.tolist(), 1.0) - output.log_probs).max() < 1e-4
        # The same group and a new transaction recover.
        await push(client, group, address, directory, 9)
        output = await client.generate(PROMPT, {**LONG, "max_new_tokens": 20})
        assert np.abs(new.log_probs(PROMPT, output.output_ids.tolist(), 1.0) - output.log_probs).max() < 1e-4
        await client.destroy_weights_group(address.name)


async def test_unflattened_tensors_of_another_dtype_are_accepted(
    client: EngineClient, model_of: Callable[..., Path]
) -> None:
    named = [(name, tensor.to(torch.bfloat16)) for name, tensor in tensors(model_of("qwen3", seed=1))[:3]]
    async with update_group(client, "plain") as (group, address):
        await client.begin_weight_update()
        meta, _ = flatten(named)
        body = {
            "names": [name for name, _ in named],
            "dtypes": ["bfloat16"] * 3,
            "shapes": [list(tensor.shape) for _, tensor in named],
            "group_name": address.name,
            "checksum": meta.checksum,
        }

        def broadcast() -> None:
            for _, tensor in named:
                dist.broadcast(tensor, 0, group)

        sending = asyncio.create_task(asyncio.to_thread(broadcast))
        await client._call("/update_weights_from_distributed", body)
        await sending
        before = await client.weights_checksum()
        await client.end_weight_update(3)
        assert await client.weights_checksum() != before
        await client.destroy_weights_group(address.name)


async def test_the_protocol_is_enforced(client: EngineClient, model_of: Callable[..., Path]) -> None:
    meta, _ = flatten(tensors(model_of("qwen3"))[:1])
    with pytest.raises(EngineRefusedError, match="call /begin_weight_update before sending weights"):
        await client.update_weights_from_distributed(meta, "none")
    with pytest.raises(EngineRefusedError, match="nothing to end"):
        await client.end_weight_update(1)
    await client.begin_weight_update()
    with pytest.raises(EngineRefusedError, match="group_name 'none' is not joined"):
        await client.update_weights_from_distributed(meta, "none")
    async with update_group(client, "protocol") as (_, address):
        for change, message in (
            ({"name": "model.layers.9.mlp.up_proj.weight"}, "is not a parameter of this Qwen3ForCausalLM"),
            ({"shape": (3, 3)}, "has shape .3, 3., the model needs"),
            ({"dtype": "int8"}, "dtype 'int8' is not a floating-point dtype"),
        ):
            await client.begin_weight_update()
            bad = BucketMeta((replace(meta.tensors[0], **change),), meta.checksum)
            with pytest.raises(EngineRefusedError, match=message):
                await client.update_weights_from_distributed(bad, address.name)
        await client.destroy_weights_group(address.name)
    with pytest.raises(EngineRefusedError, match="group_name 'protocol' is not joined"):
        await client.destroy_weights_group("protocol")


async def test_nobody_waits_for_ever(client: EngineClient, model_of: Callable[..., Path]) -> None:
    meeting = MeetingPoint("127.0.0.1")
    with pytest.raises(EngineRefusedError, match=r"ranks \[0\] of 2 did not join"):
        await client.init_weights_group(GroupAddress("127.0.0.1", meeting.port, "lonely", 2, "gloo"), 1)
    async with update_group(client, "silent") as (_, address):
        await client.begin_weight_update()
        meta, _ = flatten(tensors(model_of("qwen3")))
        with pytest.raises(EngineRefusedError, match=r"did not complete within 4 s"):
            await client.update_weights_from_distributed(meta, address.name)
    assert len((await client.generate(PROMPT, {**LONG, "max_new_tokens": 3})).output_ids) == 3


async def test_update_from_disk(client: EngineClient, model_of: Callable[..., Path], new: Reference) -> None:
    await client.update_weights_from_disk(str(model_of("qwen3", seed=1)), version=4)
    output = await client.generate(PROMPT, {**LONG, "max_new_tokens": 20})
    assert np.abs(new.log_probs(PROMPT, output.output_ids.tolist(), 1.0) - output.log_probs).max() < 1e-4
    assert output.weight_version == "4"
    with pytest.raises(EngineRefusedError, match="Qwen2ForCausalLM, the engine serves Qwen3ForCausalLM"):
        await client.update_weights_from_disk(str(model_of("qwen2")), version=5)
    assert (await client.model_info())["weight_version"] == "4"
