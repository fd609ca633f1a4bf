"""Which engine gets a request: what stays together, what moves when engines come and go, and what load overrides."""

import asyncio
from dataclasses import dataclass

import pytest

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineUnreachableError
from relax_engine.components.engine_group import unhealthy
from relax_engine.config.flat import FlatView
from relax_engine.rollout.pool import EnginePool
from relax_engine.rollout.routing import Affinity, CacheAware, LeastLoad, Sticky
from relax_engine.utils.network import free_port

SESSIONS = [f"group {number}" for number in range(400)]


@dataclass
class Engine:
    url: str
    outstanding: int = 0


def engines(count: int) -> list[Engine]:
    return [Engine(f"http://10.0.0.{number}:30000") for number in range(count)]


def homes(present: list[Engine]) -> dict[str, str]:
    return {session: Sticky().choose(present, 1, Affinity(session)).url for session in SESSIONS}


def test_the_least_busy_engine_is_the_first_of_equals() -> None:
    one, two, three = engines(3)
    one.outstanding = 4
    assert LeastLoad().choose([one, two, three], 1, Affinity()) is two


def test_an_engine_that_leaves_takes_only_its_own_sessions_along() -> None:
    present = engines(5)
    before, after = homes(present), homes(present[:-1])
    moved = {session for session in SESSIONS if before[session] != after[session]}
    assert moved == {session for session in SESSIONS if before[session] == present[-1].url}
    # A fifth of the sessions each, within four standard deviations of the binomial: sqrt(400 * 0.2 * 0.8) = 8.
    assert all(48 <= list(before.values()).count(engine.url) <= 112 for engine in present)


def test_a_session_leaves_an_engine_that_is_much_busier_and_returns() -> None:
    present = engines(4)
    policy, affinity = Sticky(), Affinity("group 7")
    home = policy.choose(present, 4, affinity)
    home.outstanding = 5  # mean 1.25, bound 1.25 * 1.25 + 4 = 5.5625
    assert policy.choose(present, 4, affinity) is home
    home.outstanding = 6  # mean 1.5, bound 5.875
    assert policy.choose(present, 4, affinity) is not home
    home.outstanding = 0
    assert policy.choose(present, 4, affinity) is home


def test_turns_go_where_their_beginning_is() -> None:
    """8 engines, 64 conversations of 6 turns of 64 tokens, in an order that changes with every turn."""
    reused = {}
    for policy in (LeastLoad(), CacheAware()):
        present, held, hits = engines(8), set[tuple[str, int, int]](), 0
        for turn in range(6):
            for conversation in sorted(range(64), key=lambda number: (number * 37 + turn * 11) % 64):
                prompt = [conversation] * 64 * (turn + 1)
                chosen = policy.choose(present, 1, Affinity(prompt=prompt))
                chosen.outstanding += 1
                hits += (chosen.url, conversation, turn - 1) in held
                held.add((chosen.url, conversation, turn))
        assert max(engine.outstanding for engine in present) <= 1.25 * 48 + 1
        reused[type(policy)] = hits / (64 * 5)
    assert reused[CacheAware] == 1.0
    assert reused[LeastLoad] < 0.5


def test_a_beginning_is_forgotten_with_its_engine() -> None:
    one, two = engines(2)
    policy, prompt = CacheAware(), list(range(100))
    two.outstanding = 1
    assert policy.choose([one, two], 1, Affinity(prompt=prompt)) is one
    one.outstanding, two.outstanding = 1, 0
    assert policy.choose([one, two], 1, Affinity(prompt=[*prompt, 5])) is one
    assert policy.choose([two], 1, Affinity(prompt=prompt)) is two
    assert policy.choose([one, two], 1, Affinity(prompt=prompt[:64])) is two  # the newest holder
    assert policy.choose([one, two], 1, Affinity(prompt=prompt[:31])) is two  # less than a block: the least busy


async def test_a_session_of_a_dead_engine_finds_another_home() -> None:
    present = engines(3)
    home = Sticky().choose(present, 1, Affinity("group 0")).url
    asked: list[str] = []

    async def request(client: EngineClient) -> str:
        asked.append(client.url)
        if client.url == home:
            raise EngineUnreachableError(f"{home}: connection refused")
        return client.url

    async with EnginePool([engine.url for engine in present], timeout_s=5, policy=Sticky()) as pool:
        answers = [await pool.run(request, samples=1, what="it", affinity=Affinity("group 0")) for _ in range(3)]
    assert asked == [home, *answers]
    assert len(set(answers)) == 1


@pytest.mark.timeout(20)
async def test_one_probe_finds_that_nobody_is_there() -> None:
    flat = FlatView(
        {
            "rollout_health_check_first_wait": 0.0,
            "rollout_health_check_interval": 0.01,
            "rollout_health_check_timeout": 5.0,
            "rollout_health_check_max_consecutive_failures": 1000,
        }
    )
    port = free_port("127.0.0.1")
    assert str(port) in await asyncio.wait_for(unhealthy(f"http://127.0.0.1:{port}", flat), 10)
