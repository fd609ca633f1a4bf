"""Scale requests: which are taken, and what becomes of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from engine_room import EngineRoom

from relax_engine.backends.engines.client import EngineClient
from relax_engine.elastic.failures import (
    EngineJoinError,
    FailureCategory,
    FencedError,
    ScaleConflictError,
    ScaleRefusedError,
)
from relax_engine.elastic.ledger import KEPT
from relax_engine.elastic.settings import ElasticSettings

BROKEN = EngineJoinError(FailureCategory.ENGINE_INIT_FAILED, "out of memory")


@pytest.fixture
async def room() -> AsyncIterator[EngineRoom]:
    room = EngineRoom()
    yield room
    await room.close()


async def test_an_engine_gets_no_request_before_it_holds_the_weights(room: EngineRoom) -> None:
    request = room.scaler.scale_out(3, [], None)
    await room.until(lambda: request.status == "WEIGHT_SYNCING")
    assert [engine.url for engine in room.pool.usable()] == ["http://initial-0"]
    # The actor is told of each, and sends what it has to all that are waiting.
    assert [e["engine"] for e in room.events if e["kind"] == "engine_started"] == request.engine_ids
    assert room.pool.receivers() == ["http://initial-0", "http://added-1", "http://added-2"]
    await room.grown(request)
    assert room.statuses(request) == ["PENDING", "CREATING", "HEALTH_CHECKING", "WEIGHT_SYNCING", "READY", "ACTIVE"]
    assert len(room.pool.usable()) == 3
    assert request.weight_version == room.version
    assert room.watched == request.engine_ids


async def test_nobody_of_a_request_serves_before_all_of_it_are_ready(room: EngineRoom) -> None:
    request = room.scaler.scale_out(3, [], None)
    await room.until(lambda: request.status == "WEIGHT_SYNCING")
    await room.pool.release(["http://added-1"])
    await asyncio.sleep(0.01)
    assert [engine.url for engine in room.pool.usable()] == ["http://initial-0"]
    room.pool.quarantine("http://added-2", "the update failed")
    await room.until(lambda: request.finished)
    assert (request.status, room.running) == ("FAILED", {"http://initial-0"})


async def test_targets_are_absolute_and_repeatable(room: EngineRoom) -> None:
    first = room.scaler.scale_out(2, [], None)
    assert room.scaler.scale_out(2, [], None) is first  # the same one, still under way
    with pytest.raises(ScaleConflictError, match=first.request_id) as conflict:
        room.scaler.scale_out(3, [], None)
    assert conflict.value.request_id == first.request_id
    with pytest.raises(ScaleConflictError):
        await room.scaler.scale_in(1, [])
    await room.grown(first)
    again = room.scaler.scale_out(2, [], None)
    assert (again.status, again.request_id) == ("NOOP", "")
    assert len(room.pool.engines) == 2
    with pytest.raises(ScaleRefusedError, match="use /scale_in"):
        room.scaler.scale_out(1, [], None)
    with pytest.raises(ScaleRefusedError, match="use /scale_out"):
        await room.scaler.scale_in(3, [])


async def test_the_last_that_came_leaves_first_and_the_initial_ones_stay(room: EngineRoom) -> None:
    await room.grown(room.scaler.scale_out(4, [], None))
    would = await room.scaler.scale_in(2, [], dry_run=True)
    assert would.selected_engines == ("http://added-3", "http://added-2")
    assert len(room.pool.engines) == 4
    # A restart in place keeps the place.
    await room.pool.replace("http://added-1b", "http://added-1")
    await room.pool.release(["http://added-1b"])
    done = await room.scaled(await room.scaler.scale_in(2, []))
    assert done.removed_engines == ["http://added-3", "http://added-2"]
    assert list(room.pool.engines) == ["http://initial-0", "http://added-1b"]
    for target, urls in ((0, []), (None, ["http://initial-0"])):
        with pytest.raises(ScaleRefusedError, match="stay"):
            await room.scaler.scale_in(target, urls)
    assert (await room.scaler.scale_in(None, ["http://added-3"])).status == "NOOP"


@pytest.mark.parametrize(("policy", "status", "left"), [("rollback_all", "FAILED", 1), ("keep_partial", "PARTIAL", 2)])
async def test_a_request_that_succeeds_in_part(policy: str, status: str, left: int) -> None:
    room = EngineRoom(settings=ElasticSettings(partial_policy=policy))  # type: ignore[arg-type]
    room.start_errors = [None, BROKEN]
    request = await room.grown(room.scaler.scale_out(3, [], None))
    assert (request.status, len(room.pool.engines), len(room.running)) == (status, left, left)
    assert request.failed_engines == {"new engine 2": "out of memory"}
    assert request.failure_categories == {"new engine 2": "ENGINE_INIT_FAILED"}
    assert ("out of memory" in request.message) == (status == "FAILED")
    await room.close()


@pytest.mark.parametrize("policy", ["rollback_all", "keep_partial"])
async def test_an_engine_that_gets_no_weights_does_not_stay(policy: str) -> None:
    room = EngineRoom(settings=ElasticSettings(partial_policy=policy))  # type: ignore[arg-type]
    request = room.scaler.scale_out(3, [], None)
    await room.until(lambda: request.status == "WEIGHT_SYNCING")
    await room.send_weights(failing=["http://added-1"])
    await room.until(lambda: request.finished)
    assert request.failure_categories == {"http://added-1": "WEIGHT_SYNC_FAILED"}
    assert request.status == ("FAILED" if policy == "rollback_all" else "PARTIAL")
    assert room.running == set(room.pool.engines)
    assert "http://added-1" not in room.running
    await room.close()


async def test_a_request_that_takes_too_long_fails_in_time_and_leaves_nothing() -> None:
    room = EngineRoom()
    request = room.scaler.scale_out(2, [], 0.05)
    await room.until(lambda: request.finished)  # nobody sends weights
    assert request.status == "FAILED"
    assert request.failure_categories == {"http://added-1": "WEIGHT_SYNC_FAILED"}
    room.gate.clear()
    request = room.scaler.scale_out(2, [], 0.05)
    await room.until(lambda: request.finished)
    assert request.failure_categories == {"new engine 1": "PROVISION_TIMEOUT"}
    assert room.running == {"http://initial-0"}
    await room.close()


async def test_cancelling_takes_back_what_was_made(room: EngineRoom) -> None:
    room.gate.clear()
    request = room.scaler.scale_out(3, [], None)
    await room.until(lambda: request.status == "CREATING")
    room.gate.set()
    await asyncio.sleep(0)
    room.gate.clear()
    room.scaler.cancel(request.request_id)
    await room.until(lambda: request.finished)
    assert room.statuses(request)[-2:] == ["REMOVING", "CANCELLED"]
    assert (room.running, list(room.pool.engines)) == ({"http://initial-0"}, ["http://initial-0"])
    with pytest.raises(ScaleRefusedError, match="is CANCELLED"):
        room.scaler.cancel(request.request_id)
    room.gate.set()
    request = room.scaler.scale_out(2, [], None)
    room.scaler.cancel(request.request_id)  # before it was begun
    assert request.status == "CANCELLED"
    request = room.scaler.scale_out(2, [], None)
    await room.until(lambda: request.status == "WEIGHT_SYNCING")
    with pytest.raises(ScaleRefusedError, match="is WEIGHT_SYNCING"):
        room.scaler.cancel(request.request_id)


async def busy(room: EngineRoom, url: str, end: asyncio.Event) -> asyncio.Task[str]:
    """A request that the engine at `url` has until `end`, and that any other one answers at once."""

    async def answer(client: EngineClient) -> str:
        if client.url == url:
            await end.wait()
        return client.url

    engine = room.pool.engines[url]
    task = asyncio.create_task(room.pool.run(answer, samples=1, what="a group", engine=engine))
    await room.until(lambda: engine.outstanding)
    return task


async def test_a_drain_ends_with_the_last_request(room: EngineRoom) -> None:
    await room.grown(room.scaler.scale_out(2, [], None))
    end = asyncio.Event()
    task = await busy(room, "http://added-1", end)
    request = await room.scaler.scale_in(1, [])
    await room.until(lambda: request.status == "DRAINING")
    assert [engine.url for engine in room.pool.usable()] == ["http://initial-0"]
    await asyncio.sleep(0.02)
    assert request.status == "DRAINING"
    end.set()
    started = asyncio.get_running_loop().time()
    await room.scaled(request)
    assert asyncio.get_running_loop().time() - started < 1  # not the whole --scale-in-drain-timeout
    assert (await task, request.status, room.cuts) == ("http://added-1", "COMPLETED", [])


@pytest.mark.parametrize("force", [False, True])
async def test_what_is_in_flight_after_the_drain_is_cut_off(force: bool) -> None:
    room = EngineRoom(settings=ElasticSettings(drain_timeout_s=0.05))
    await room.grown(room.scaler.scale_out(2, [], None))
    task = await busy(room, "http://added-1", asyncio.Event())
    request = await room.scaled(await room.scaler.scale_in(1, [], force=force))
    assert (request.status, room.cuts) == ("COMPLETED", ["http://added-1"])
    assert ("DRAINING" in room.statuses(request)) != force
    task.cancel()
    await room.close()


async def test_engines_are_not_removed_while_weights_are_sent() -> None:
    room = EngineRoom(settings=ElasticSettings(fence_timeout_s=0.05, drain_timeout_s=5))
    await room.grown(room.scaler.scale_out(2, [], None))
    end = asyncio.Event()
    await busy(room, "http://added-1", end)
    request = await room.scaler.scale_in(1, [])
    await room.until(lambda: request.status == "DRAINING")
    room.fence.close()
    end.set()
    await asyncio.sleep(0.02)
    assert (request.status, list(room.pool.engines)) == ("DRAINING", ["http://initial-0", "http://added-1"])
    room.fence.open()
    await room.scaled(request)
    assert room.running == {"http://initial-0"}
    await room.grown(room.scaler.scale_out(2, [], None))
    room.fence.close()
    with pytest.raises(FencedError, match="try again"):
        await room.scaler.scale_in(1, [])
    # Past the deadline of a request that was taken, its engines stay and serve on.
    room.fence.open()
    late = await room.scaler.scale_in(1, [], timeout_s=0.05)
    room.fence.close()
    await room.scaled(late)
    assert late.status == "FAILED"
    assert len(room.pool.usable()) == 2
    await room.close()


async def test_an_eviction_waits_for_its_turn(room: EngineRoom) -> None:
    await room.grown(room.scaler.scale_out(2, [], None))
    request = room.scaler.scale_out(3, [], None)
    await room.until(lambda: request.status == "WEIGHT_SYNCING")
    room.pool.quarantine("http://added-1", "its process ended with status -15")
    eviction = room.scaler.evicted("http://added-1")
    await asyncio.sleep(0.01)
    assert eviction.status == "PENDING"
    await room.grown(request)
    await room.scaled(eviction)
    assert (eviction.evicted, eviction.status) == (True, "COMPLETED")
    assert list(room.pool.engines) == ["http://initial-0", "http://added-2"]


@pytest.mark.parametrize(
    ("url", "category"),
    [
        ("http://192.0.2.1:80", "INVALID_ENGINE_ADDRESS"),
        ("ftp://127.0.0.1", "INVALID_ENGINE_ADDRESS"),
        ("http://127.0.0.1:9", "EXTERNAL_ENGINE_CONNECT_FAILED"),
    ],
)
async def test_an_external_engine_that_may_not_or_cannot_join(room: EngineRoom, url: str, category: str) -> None:
    request = room.scaler.scale_out(None, [url], None)
    await room.until(lambda: request.finished)
    assert (request.status, request.failure_categories) == ("FAILED", {url: category})
    assert list(room.pool.engines) == ["http://initial-0"]


async def test_ended_requests_are_forgotten_in_time(room: EngineRoom) -> None:
    room.start_errors = [BROKEN] * (KEPT + 5)
    first = room.scaler.scale_out(2, [], None)
    await room.until(lambda: first.finished)
    for _ in range(KEPT + 4):
        request = room.scaler.scale_out(2, [], None)
        await room.until(lambda request=request: request.finished)
    assert len(room.scaler.ledger.scale_outs()) == KEPT + 1  # the newest had not ended when it came
    with pytest.raises(ScaleRefusedError, match="forgotten"):
        room.scaler.ledger.scale_out(first.request_id)
