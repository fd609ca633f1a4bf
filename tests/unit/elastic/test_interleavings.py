"""Random interleavings of scale requests, cancels, deaths, evictions, weight updates and generation.

Invariants, after every step: never two operations at once; no request goes to an engine that is in quarantine, on its
way in or out, or without the current weights; the initial engines are there. In the end every scale request is in a
terminal state, every generation request was answered, and no engine runs that is not in the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from engine_room import EngineRoom
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineUnreachableError
from relax_engine.elastic.failures import EngineJoinError, FailureCategory, ScaleRefusedError
from relax_engine.elastic.requests import ScaleIn, ScaleOut
from relax_engine.elastic.settings import ElasticSettings

INITIAL = 2
TICKS = 40


class Interleavings(RuleBasedStateMachine):
    """The machine plays cluster, actor and user."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.requests: list[ScaleOut | ScaleIn] = []
        self.room = self.run(self.make())
        self.held = dict.fromkeys(self.room.pool.engines, self.room.version)
        self.updating: list[str] | None = None
        self.in_flight: dict[int, tuple[str, asyncio.Future[str]]] = {}
        self.generations: list[asyncio.Task[str]] = []
        self.heard = 0

    async def make(self) -> EngineRoom:
        limits = ElasticSettings(partial_policy="keep_partial", fence_timeout_s=0.001, drain_timeout_s=0.002)
        return EngineRoom(INITIAL, limits)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def tick(self, count: int = 3) -> None:
        """Let things go on; requests of engines that have gone break."""
        for _ in range(count):
            await asyncio.sleep(0)
            for number, (url, answer) in list(self.in_flight.items()):
                if url not in self.room.pool.engines and not answer.done():
                    answer.set_exception(EngineUnreachableError(f"{url} is gone"))
                    del self.in_flight[number]

    # -- users -----------------------------------------------------------------------------------

    @rule(target_size=st.integers(0, 6))
    def scale_out(self, target_size: int) -> None:
        async def ask() -> None:
            try:
                self.requests.append(self.room.scaler.scale_out(target_size, [], 60))
            except ScaleRefusedError:
                return

        self.run(ask())

    @rule(target_size=st.integers(0, 6), force=st.booleans())
    def scale_in(self, target_size: int, force: bool) -> None:
        async def ask() -> None:
            try:
                self.requests.append(await self.room.scaler.scale_in(target_size, [], force=force, timeout_s=60))
            except ScaleRefusedError:
                return

        self.run(ask())

    @precondition(lambda self: self.requests)
    @rule()
    def cancel(self) -> None:
        async def ask() -> None:
            try:
                self.room.scaler.cancel(self.requests[-1].request_id)
            except ScaleRefusedError:
                return

        self.run(ask())

    @precondition(lambda self: len(self.in_flight) < 8)
    @rule()
    def generate(self) -> None:
        async def ask() -> None:
            task = asyncio.create_task(self.room.pool.run(self.answer, samples=1, what="a group"))
            self.generations.append(task)
            await self.tick()

        self.run(ask())

    async def answer(self, client: EngineClient) -> str:
        engine = self.room.pool.engines[client.url]
        assert engine.quarantined is None
        assert not engine.reserved
        assert not engine.draining
        assert self.held[client.url] == self.room.version, "stale weights"
        answer: asyncio.Future[str] = self.loop.create_future()
        self.in_flight[id(answer)] = (client.url, answer)
        return await answer

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 7))
    def finish(self, which: int) -> None:
        numbers = list(self.in_flight)
        url, answer = self.in_flight.pop(numbers[which % len(numbers)])
        answer.set_result(url)
        self.run(self.tick())

    # -- the cluster -----------------------------------------------------------------------------

    @rule()
    def room_comes_and_goes(self) -> None:
        if self.room.gate.is_set():
            self.room.gate.clear()
        else:
            self.room.gate.set()
        self.run(self.tick())

    @rule()
    def a_start_fails(self) -> None:
        self.room.start_errors.append(EngineJoinError(FailureCategory.ENGINE_INIT_FAILED, "it did not start"))

    @rule(which=st.integers(0, 7), evicted=st.booleans())
    def die(self, which: int, evicted: bool) -> None:
        """An engine that serves dies; it is started again, or leaves when its machine is taken away."""

        async def happen() -> None:
            pool = self.room.pool
            victims = [engine for engine in pool.engines.values() if engine.quarantined is None and not engine.reserved]
            if not victims:
                return
            victim = victims[which % len(victims)]
            pool.quarantine(victim.url, "it died")
            self.held.pop(victim.url)
            for number, (url, answer) in list(self.in_flight.items()):
                if url == victim.url:
                    answer.set_exception(EngineUnreachableError(f"{url} died"))
                    del self.in_flight[number]
            if evicted and victim.origin != "initial":
                self.requests.append(self.room.scaler.evicted(victim.url))
            else:
                new = f"{victim.url}-again"
                await pool.replace(new, victim.url)
                self.room.running.discard(victim.url)
                self.room.running.add(new)
                self.room.emit("engine_started", engine=new, replaces=victim.url)
            await self.tick()

        self.run(happen())

    # -- the actor -------------------------------------------------------------------------------

    @precondition(lambda self: self.updating is None)
    @rule()
    def update_begins(self) -> None:
        self.room.fence.close()
        self.updating = self.room.pool.receivers()
        self.run(self.tick())

    @precondition(lambda self: self.updating is not None)
    @rule(failing=st.sets(st.integers(0, 7), max_size=2))
    def update_ends(self, failing: set[int]) -> None:
        async def happen() -> None:
            pool, receivers = self.room.pool, self.updating or []
            assert set(receivers) <= set(pool.engines) | {u for u in receivers if u not in self.held}, "taken away"
            failed = {url for number, url in enumerate(receivers) if number in failing}
            self.room.version += 1
            committed = [url for url in receivers if url not in failed and url in pool.engines]
            self.held |= dict.fromkeys(committed, self.room.version)
            for url in failed:
                pool.quarantine(url, "the update failed")
            # Whoever got no update is quarantined, or has died meanwhile.
            await pool.release(committed)
            self.updating = None
            self.room.fence.open()
            for url in failed & set(pool.engines):
                engine = pool.engines[url]
                if not engine.reserved:  # out of service until it is started again
                    await pool.replace(f"{url}-anew", url)
                    self.room.running.discard(url)
                    self.room.running.add(f"{url}-anew")
            await self.tick()

        self.run(happen())

    @precondition(lambda self: self.updating is None)
    @rule(count=st.integers(1, 3))
    def newcomers_are_brought_up(self, count: int) -> None:
        async def happen() -> None:
            waiting = [url for url, engine in self.room.pool.engines.items() if engine.waits][:count]
            self.held |= dict.fromkeys(waiting, self.room.version)
            await self.room.pool.release(waiting)
            await self.tick()

        self.run(happen())

    @rule()
    def time_passes(self) -> None:
        self.run(asyncio.sleep(0.003))
        self.run(self.tick(TICKS))

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def one_operation_at_a_time(self) -> None:
        open_ones = [request for request in self.requests if not request.finished]
        unique = {id(request): request for request in open_ones if request.request_id}.values()
        assert sum(request.status != "PENDING" for request in unique) <= 1
        assert sum(not (isinstance(request, ScaleIn) and request.evicted) for request in unique) <= 1

    @invariant()
    def the_initial_engines_are_there(self) -> None:
        initial = [engine for engine in self.room.pool.engines.values() if engine.origin == "initial"]
        assert len(initial) == INITIAL
        assert not any(engine.draining or engine.reserved for engine in initial)

    @invariant()
    def requests_are_where_they_may_be(self) -> None:
        for url, answer in self.in_flight.values():
            assert answer.done() or url in self.room.pool.engines or url not in self.held
        assert all(engine.outstanding >= 0 for engine in self.room.pool.engines.values())

    def teardown(self) -> None:
        if self.updating is not None:
            self.update_ends(set())
        self.room.gate.set()
        self.run(self.end())
        self.loop.close()

    async def end(self) -> None:
        async with asyncio.timeout(20):
            while not all(request.finished for request in self.requests):
                waiting = [url for url, engine in self.room.pool.engines.items() if engine.waits]
                self.held |= dict.fromkeys(waiting, self.room.version)
                await self.room.pool.release(waiting)
                await self.tick()
                await asyncio.sleep(0.001)
            waiting = [url for url, engine in self.room.pool.engines.items() if engine.waits]
            self.held |= dict.fromkeys(waiting, self.room.version)
            await self.room.pool.release(waiting)
            while not all(task.done() for task in self.generations):
                await self.tick()
                for url, answer in self.in_flight.values():
                    answer.set_result(url)
                self.in_flight.clear()
                await asyncio.sleep(0)
        assert all(task.result().startswith("http://") for task in self.generations)
        assert set(self.room.pool.engines) == self.room.running
        await self.room.close()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
