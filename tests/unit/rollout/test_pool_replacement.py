"""Engines that are started again: requests wait for one, and a new one is used only when it holds the weights."""

import asyncio

import pytest

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.types import EngineUnreachableError
from relax_engine.rollout.pool import EnginePool, EnginesLostError


async def test_a_request_waits_for_an_engine_that_holds_the_weights() -> None:
    pool = EnginePool(["http://a"], timeout_s=5, replace_s=5)
    asked: list[str] = []

    async def request(client: EngineClient) -> str:
        asked.append(client.url)
        if client.url == "http://a":
            raise EngineUnreachableError("http://a: connection reset")
        return "answer"

    task = asyncio.create_task(pool.run(request, samples=4, what="group 0"))
    await asyncio.sleep(0.01)
    assert pool.engines["http://a"].quarantined == "http://a: connection reset"
    await pool.replace("http://b", "http://a")
    await asyncio.sleep(0.01)
    assert asked == ["http://a"]
    assert list(pool.engines) == ["http://b"]
    await pool.release(["http://b", "http://elsewhere"])
    assert await asyncio.wait_for(task, 5) == "answer"
    assert pool.engines["http://b"].outstanding == 0
    await pool.close()


async def test_a_request_gives_up_when_no_engine_comes_back() -> None:
    pool = EnginePool(["http://a"], timeout_s=5, replace_s=0.05)
    pool.quarantine("http://a", "its process ended with status -9")
    with pytest.raises(EnginesLostError, match="its process ended with status -9"):
        await pool.run(lambda client: client.health(), samples=1, what="group 0")
    await pool.close()


async def test_without_replacement_the_last_engine_is_missed_at_once() -> None:
    pool = EnginePool(["http://a"], timeout_s=5)
    pool.quarantine("http://a", "dead")
    with pytest.raises(EnginesLostError):
        pool.usable()
    await pool.close()


async def test_memory_is_taken_again_by_those_that_gave_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's server ends when it is told to resume what it did not release."""
    pool = EnginePool(["http://a", "http://b", "http://c"], timeout_s=5)
    pool.quarantine("http://c", "dead")
    calls: list[tuple[str, str]] = []

    async def call(client: EngineClient, endpoint: str, *_: object, **__: object) -> dict[str, str]:
        calls.append((client.url, endpoint))
        if (client.url, endpoint) == ("http://b", "/resume_memory_occupation"):
            raise EngineUnreachableError("http://b: connection reset")
        return {}

    monkeypatch.setattr(EngineClient, "_call", call)
    await pool.resume_memory()
    assert calls == []
    await pool.release_memory()
    await pool.resume_memory()
    await pool.resume_memory()
    assert sorted(calls) == [
        (url, f"/{word}_memory_occupation") for url in ("http://a", "http://b") for word in ("release", "resume")
    ]
    assert pool.engines["http://a"].usable
    assert pool.engines["http://b"].quarantined == "it did not take its memory again: http://b: connection reset"
    await pool.close()
