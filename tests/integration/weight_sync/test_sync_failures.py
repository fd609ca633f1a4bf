"""Weight syncs in which engines die or hang: who is blamed, who goes on, and how long it takes."""

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.weight_sync.messages import GroupAddress, WeightSyncError
from relax_engine.weight_sync.receivers import EngineReceiver
from relax_engine.weight_sync.sender import WeightSender
from relax_engine.weight_sync.transports.broadcast import Broadcast

TIMEOUT = 8.0


@pytest.fixture(scope="module")
def engines(launch: Callable[[int], list[EngineProcess]]) -> list[EngineProcess]:
    """Engines of which each test takes what it destroys from the end; the first one lives through all."""
    return launch(5)


@pytest.fixture
def survivor(engines: list[EngineProcess]) -> EngineProcess:
    return engines[0]


@pytest.fixture
def victim(engines: list[EngineProcess]) -> EngineProcess:
    return engines.pop()


@pytest.fixture
def named(new_model: Path) -> list[tuple[str, Tensor]]:
    return sorted(load_file(new_model / "model.safetensors").items())


@pytest.fixture
async def sender(survivor: EngineProcess) -> AsyncIterator[WeightSender]:
    sender = WeightSender(Broadcast("127.0.0.1"), bucket_bytes=1 << 20, timeout_s=TIMEOUT)
    yield sender
    await sender.close(receivers(survivor))


def receivers(*engines: EngineProcess) -> list[EngineReceiver]:
    return [EngineReceiver(engine.url, TIMEOUT) for engine in engines]


async def version(engine: EngineProcess) -> str:
    async with EngineClient(engine.url, timeout_s=TIMEOUT) as client:
        output = await client.generate([1, 2, 3], {"max_new_tokens": 2})  # it generates, too
        assert output.weight_version == (await client.model_info())["weight_version"]
        return output.weight_version


def kill(engine: EngineProcess) -> None:
    engine.process.kill()
    engine.process.wait(10)


@pytest.mark.parametrize("first", ["survivor", "victim"])
async def test_an_engine_killed_while_buckets_travel(
    first: str, survivor: EngineProcess, victim: EngineProcess, named: list[tuple[str, Tensor]], sender: WeightSender
) -> None:
    """Whichever rank it has in the group: the other one is not blamed for the broken connection."""
    consumed: list[int] = []

    def tensors() -> Iterator[tuple[str, Tensor]]:
        consumed.append(0)
        for position, pair in enumerate(named):
            if position == len(named) // 2:
                kill(victim)
            consumed[-1] += 1
            yield pair

    order = (survivor, victim) if first == "survivor" else (victim, survivor)
    started = time.monotonic()
    report = await sender.push(tensors, receivers(*order), 1)
    assert report.committed == [survivor.url]
    assert list(report.quarantined) == [victim.url]
    assert victim.url in report.quarantined[victim.url]
    assert time.monotonic() - started < TIMEOUT / 2
    assert await version(survivor) == "1"
    # Each attempt took all tensors: the other training ranks are in the same gathers.
    assert consumed == [len(named), len(named)]
    again = await sender.push(lambda: iter(named), receivers(survivor), 2)
    assert again.committed == [survivor.url]
    assert await version(survivor) == "2"


async def test_an_engine_that_is_dead_from_the_start(
    survivor: EngineProcess, victim: EngineProcess, named: list[tuple[str, Tensor]], sender: WeightSender
) -> None:
    kill(victim)
    started = time.monotonic()
    report = await sender.push(lambda: iter(named), receivers(victim, survivor), 3)
    assert report.committed == [survivor.url]
    assert "ConnectionRefusedError" in report.quarantined[victim.url]
    assert time.monotonic() - started < TIMEOUT / 2
    assert await version(survivor) == "3"


async def test_an_engine_that_fails_to_join_is_the_one_that_is_blamed(
    survivor: EngineProcess, named: list[tuple[str, Tensor]], sender: WeightSender
) -> None:
    """The others wait for it inside the group; they are called off instead of waiting for the deadline."""

    class Reluctant(EngineReceiver):
        @property
        def name(self) -> str:
            return "reluctant"

        async def begin(self) -> str:
            return ""

        async def join(self, address: GroupAddress, rank: int) -> None:
            raise RuntimeError("no sockets left")

    started = time.monotonic()
    report = await sender.push(lambda: iter(named), [Reluctant(survivor.url, TIMEOUT), *receivers(survivor)], 4)
    assert report.committed == [survivor.url]
    assert report.quarantined == {"reluctant": "no sockets left"}
    assert time.monotonic() - started < TIMEOUT / 2
    assert await version(survivor) == "4"


async def test_an_engine_that_hangs_is_quarantined_at_the_deadline(
    survivor: EngineProcess, victim: EngineProcess, named: list[tuple[str, Tensor]], sender: WeightSender
) -> None:
    quick = WeightSender(Broadcast("127.0.0.1"), bucket_bytes=1 << 20, timeout_s=3.0)
    report = await quick.push(lambda: iter(named), receivers(survivor, victim), 5)
    assert len(report.committed) == 2
    os.kill(victim.pid, signal.SIGSTOP)
    started = time.monotonic()
    report = await quick.push(lambda: iter(named), receivers(survivor, victim), 6)
    took = time.monotonic() - started
    os.kill(victim.pid, signal.SIGCONT)
    assert report.committed == [survivor.url]
    assert report.quarantined == {victim.url: "no answer within 3 s"}
    assert 3.0 <= took < 5.0
    assert await version(survivor) == "6"
    # It still shows the version that it has.
    assert await version_when_resumed(victim) == "5"
    await quick.close(receivers(survivor))


async def version_when_resumed(engine: EngineProcess) -> str:
    async with EngineClient(engine.url, timeout_s=TIMEOUT) as client:
        return (await client.model_info())["weight_version"]


async def test_without_any_engine_left_the_sync_fails(
    launch: Callable[[int], list[EngineProcess]], named: list[tuple[str, Tensor]]
) -> None:
    engines = launch(2)
    for engine in engines:
        kill(engine)
    sender = WeightSender(Broadcast("127.0.0.1"), bucket_bytes=1 << 20, timeout_s=TIMEOUT)
    started = time.monotonic()
    with pytest.raises(
        WeightSyncError, match=f"version 9 failed on every receiver.*{engines[0].url}.*{engines[1].url}"
    ):
        await sender.push(lambda: iter(named), receivers(*engines), 9)
    assert time.monotonic() - started < TIMEOUT
