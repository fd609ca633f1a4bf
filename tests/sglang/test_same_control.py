"""Pausing, aborting and new weights: what the rollout and the weight sync ask of an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sglang_suite import CONTEXT, FACTS, KEY

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineRefusedError, GenerateOutput, VersionSpan
from relax_engine.weight_sync.messages import BucketMeta, TensorMeta
from relax_engine.weight_sync.receivers import EngineReceiver
from relax_engine.weight_sync.sender import WeightSender
from relax_engine.weight_sync.store import WeightStore
from relax_engine.weight_sync.transports.base import Transport
from relax_engine.weight_sync.transports.broadcast import Broadcast
from relax_engine.weight_sync.transports.object_store import ObjectStore
from relax_engine.weight_sync.transports.shared_memory import SharedMemory
from tests.integration.backends.engines.engine_models import Reference

pytestmark = pytest.mark.sglang

PROMPT = list(range(40, 72))
LENGTH = CONTEXT - len(PROMPT) - 8
"""So many tokens that a request still runs when it was seen to run, however fast the engine."""
LONG = {"max_new_tokens": LENGTH, "ignore_eos": True}
SAME = 1e-4
TIMEOUT = 60.0

Weights = Callable[[], Iterable[tuple[str, torch.Tensor]]]


def weights_of(model: Path) -> Weights:
    return lambda: load_file(model / "model.safetensors").items()


@pytest.fixture
async def first_weights_again(client: EngineClient, models: tuple[Path, Path]) -> AsyncIterator[None]:
    yield
    await client.update_weights_from_disk(str(models[0]), version=0)
    await client.flush_cache()


def gap(reference: Reference, output: GenerateOutput, span: VersionSpan) -> float:
    """Largest difference within the tokens of `span`, each from a pass over everything before it."""
    expected = reference.log_probs(PROMPT, output.output_ids.tolist(), 1.0)
    return float(np.abs(expected - output.log_probs)[span.start : span.end].max())


async def begun(client: EngineClient, rid: str = "request") -> asyncio.Task[GenerateOutput]:
    """A request that has some of its tokens, one more than were running."""

    async def running() -> int:
        return int((await client.loads())[0]["num_running_reqs"])

    before = await running()
    task = asyncio.create_task(client.generate(PROMPT, LONG, rid=rid))
    async with asyncio.timeout(TIMEOUT):
        while await running() <= before:
            assert not task.done(), task.exception() or task.result()
            await asyncio.sleep(0.005)
    return task


async def test_abort_by_prefix_spares_the_others(client: EngineClient) -> None:
    cut, kept = await begun(client, "cut-1"), await begun(client, "keep-1")
    await client.abort("cut")
    output = await cut
    assert output.finish_reason["type"] == "abort"
    assert 0 < len(output.output_ids) == len(output.log_probs) < LONG["max_new_tokens"]
    assert (await kept).finish_reason["type"] == "length"


async def test_the_server_itself_aborts_by_whole_id(client: EngineClient, kind: str) -> None:
    task = await begun(client, "cut-1")
    await client._call("/abort_request", {"rid": "cut"})
    assert (await task).finish_reason["type"] == ("length" if kind == "sglang" else "abort")


async def test_abort_all(client: EngineClient) -> None:
    tasks = [await begun(client, f"{number}") for number in range(3)]
    await client.abort()
    assert {(await task).finish_reason["type"] for task in tasks} == {"abort"}


async def test_abort_of_requests_that_wait(client: EngineClient) -> None:
    """More than run at once: the others are given up before they have begun."""
    prompts = [PROMPT] * 100
    task = asyncio.create_task(client.generate_batch(prompts, LONG, rids=[f"cut-{i}" for i in range(100)]))
    await asyncio.sleep(0.3)
    await client.abort()
    outputs = await task
    assert {output.finish_reason["type"] for output in outputs} == {"abort"}
    begun_ones = [output for output in outputs if len(output.output_ids)]
    assert 0 < len(begun_ones) <= 64
    for output in outputs:
        assert len(output.output_ids) == len(output.log_probs)
        assert not len(output.output_ids) or output.weight_versions[-1].end == len(output.output_ids)


async def test_pause_abort_holds_what_comes_later(client: EngineClient, old: Reference) -> None:
    task = await begun(client)
    await client.pause("abort")
    output = await task
    assert output.finish_reason["type"] == "abort"
    assert gap(old, output, VersionSpan("0", 0, len(output.output_ids))) < SAME
    later = asyncio.create_task(client.generate(PROMPT, {"max_new_tokens": 3, "ignore_eos": True}))
    await asyncio.sleep(0.3)
    await client.health(deadline_s=2)
    assert not later.done()
    await client.resume()
    assert len((await later).output_ids) == 3


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_pause_and_continue(client: EngineClient, old: Reference, mode: str) -> None:
    task = await begun(client)
    await client.pause(mode)  # type: ignore[arg-type]
    await asyncio.sleep(0.3)
    assert not task.done()
    await client.resume()
    output = await task
    assert output.finish_reason["type"] == "length"
    assert output.num_retractions == (mode == "retract")
    assert gap(old, output, VersionSpan("0", 0, LENGTH)) < SAME


def transport(name: str, tmp_path: Path) -> Transport:
    if name == "broadcast":
        return Broadcast("127.0.0.1", backend="gloo")
    return SharedMemory() if name == "shared_memory" else ObjectStore(WeightStore(str(tmp_path)))


@pytest.mark.parametrize("name", ["broadcast", "shared_memory", "object_store"])
@pytest.mark.usefixtures("first_weights_again")
async def test_new_weights_while_a_request_runs(
    client: EngineClient,
    models: tuple[Path, Path],
    old: Reference,
    new: Reference,
    name: str,
    tmp_path: Path,
    kind: str,
) -> None:
    """Each token has the log-prob of the weights that the spans say it is from."""
    receiver = EngineReceiver(client.url, TIMEOUT, api_key=KEY)
    sender = WeightSender(transport(name, tmp_path), bucket_bytes=1 << 20, timeout_s=TIMEOUT)
    try:
        # Once without a request, so that the second time the group is there.
        await sender.push(weights_of(models[0]), [receiver], 6)
        task = await begun(client)
        report = await sender.push(weights_of(models[1]), [receiver], 7)
        assert report.committed == [client.url], report.quarantined
        assert report.buckets > 2
        output = await task
        before, after = output.weight_versions
        assert (before.version, before.start, after.version, after.end) == ("6", 0, "7", LENGTH)
        assert before.end == after.start
        assert output.num_retractions == 1
        assert gap(old, output, before) < SAME
        assert gap(new, output, after) < SAME
        fresh = await client.generate(PROMPT, LONG)
        assert fresh.weight_versions == (VersionSpan("7", 0, LENGTH),)
        assert gap(new, fresh, fresh.weight_versions[0]) < SAME
        assert (await client.model_info())["weight_version"] == "7"
        FACTS[f"sync of {report.nbytes / 1e6:.1f} MB to {kind} by {name}, seconds"] = f"{report.seconds:.3f}"
    finally:
        await sender.close([receiver])


@pytest.mark.usefixtures("first_weights_again")
async def test_weights_from_disk(client: EngineClient, models: tuple[Path, Path], new: Reference) -> None:
    started = time.monotonic()
    await client.update_weights_from_disk(str(models[1]), version="other")
    FACTS.setdefault("update from disk, seconds", f"{time.monotonic() - started:.3f}")
    output = await client.generate(PROMPT, LONG)
    assert output.weight_version == "other"
    assert gap(new, output, VersionSpan("other", 0, LENGTH)) < SAME


async def test_weights_that_are_not_there(client: EngineClient, old: Reference, tmp_path: Path) -> None:
    with pytest.raises(EngineRefusedError, match="answered 400"):
        await client.update_weights_from_disk(str(tmp_path / "nothing"), version=9)
    output = await client.generate(PROMPT, LONG)
    assert output.weight_version == "0"
    assert gap(old, output, VersionSpan("0", 0, LENGTH)) < SAME


@pytest.mark.usefixtures("first_weights_again")
async def test_an_unfinished_update_is_dropped_by_the_next(
    client: EngineClient, models: tuple[Path, Path], new: Reference
) -> None:
    await client.begin_weight_update()
    receiver = EngineReceiver(client.url, TIMEOUT, api_key=KEY)
    sender = WeightSender(Broadcast("127.0.0.1", backend="gloo"), bucket_bytes=1 << 20, timeout_s=TIMEOUT)
    report = await sender.push(weights_of(models[1]), [receiver], 3)
    await sender.close([receiver])
    assert report.committed == [client.url], report.quarantined
    assert gap(new, await client.generate(PROMPT, LONG), VersionSpan("3", 0, LENGTH)) < SAME


async def test_a_bucket_outside_of_an_update_or_of_an_unknown_group(client: EngineClient) -> None:
    bucket = BucketMeta((TensorMeta("model.norm.weight", "float32", (128,)),), "")
    with pytest.raises(EngineRefusedError, match="answered 400"):
        await client.update_weights_from_distributed(bucket, "nobody")
    await client.begin_weight_update()
    with pytest.raises(EngineRefusedError, match="answered 400"):
        await client.update_weights_from_distributed(bucket, "nobody")
    with pytest.raises(EngineRefusedError, match="answered 400"):
        await client.destroy_weights_group("nobody")


async def test_an_update_that_is_begun_twice(client: EngineClient, kind: str) -> None:
    await client.begin_weight_update()
    if kind == "local":
        await client._call("/begin_weight_update", {})
    else:
        with pytest.raises(EngineRefusedError, match=r"answered 400: .* already open"):
            await client._call("/begin_weight_update", {})
    await client._call("/end_weight_update", {})


async def test_memory_is_given_back_and_taken_again(client: EngineClient, old: Reference) -> None:
    await client.release_memory()
    await client.resume_memory()
    output = await client.generate(PROMPT, LONG)
    assert gap(old, output, VersionSpan("0", 0, LENGTH)) < SAME


async def test_health(client: EngineClient) -> None:
    await client.health(deadline_s=2)
    await client.health(generate=True, deadline_s=20)
