"""An external engine joins, and leaves with requests: no response is lost, and each is what it would have been."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from test_continued import SAMPLING, TIMEOUT_S, flat, make_groups

from relax_engine.backends.engines.client import EngineClient
from relax_engine.backends.engines.launch import EngineProcess
from relax_engine.elastic.fence import WeightFence
from relax_engine.elastic.fleet import EngineFleet
from relax_engine.elastic.requests import ScaleIn, ScaleOut
from relax_engine.elastic.scaler import Scaler
from relax_engine.elastic.settings import ElasticSettings
from relax_engine.elastic.urls import check_engine_url
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.partial import is_finished
from relax_engine.rollout.pool import EnginePool

LONG = replace(SAMPLING, max_new_tokens=200)


class Elsewhere:
    """Its engines are somebody else's to start and to end."""

    async def launch(self, timeout_s: float) -> str:
        raise AssertionError("no engine is to be started")

    async def end(self, url: str, timeout_s: float) -> None:
        return

    def watch(self, url: str) -> None:
        return

    def details(self, url: str) -> Mapping[str, Any]:
        return {}


async def ended(request: ScaleOut | ScaleIn) -> str:
    async with asyncio.timeout(TIMEOUT_S):
        while not request.finished:
            await asyncio.sleep(0.01)
    return request.status


@pytest.mark.parametrize("partial", [True, False])
async def test_an_external_engine_comes_and_goes(engines: list[EngineProcess], tokenizer: Any, partial: bool) -> None:
    own, other = (engine.url for engine in engines)
    whole, pieces = make_groups(tokenizer, 6), make_groups(tokenizer, 6)
    async with EnginePool([own], timeout_s=TIMEOUT_S) as pool:
        generator = Generator(pool, LONG, tokenizer=tokenizer)

        async def cut(url: str) -> None:
            if partial:
                await generator.cut_from(url)

        def allow(url: str) -> None:
            check_engine_url(url, ["127.0.0.0/8"])

        await generator.generate(whole)
        fleet = EngineFleet(pool, Elsewhere(), lambda kind, **_: None, WeightFence(), cut=cut, allow=allow)
        scaler = Scaler("default", fleet, ElasticSettings(), lambda kind, **_: None, version=lambda: 0)
        joining = scaler.scale_out(None, [other], None)
        async with asyncio.timeout(TIMEOUT_S):
            while joining.status != "WEIGHT_SYNCING":
                await asyncio.sleep(0.01)
        await pool.release([other])  # it was started with the same weights
        assert await ended(joining) == "ACTIVE"
        async with EngineClient(other, timeout_s=TIMEOUT_S) as leaver, asyncio.timeout(TIMEOUT_S):
            await leaver.pause("in_place")  # however fast it is, and however late it hears, it is not done
            tasks = [asyncio.create_task(generator.generate([group])) for group in pieces]
            while (await leaver.loads())[0]["num_total_reqs"] < 6:
                await asyncio.sleep(0.01)
            assert pool.engines[other].outstanding == 6
            leaving = await scaler.scale_in(None, [other], force=True)
            assert await ended(leaving) == "COMPLETED"
            await asyncio.gather(*tasks)
            await leaver.resume()
        cut_off = [sample for sample in flat(pieces) if not is_finished(sample)]
        assert bool(cut_off) == partial
        await asyncio.gather(*(generator.generate([group]) for group in pieces))
        assert list(pool.engines) == [own]
        assert [sample.rollout_tokens for sample in flat(pieces)] == [sample.rollout_tokens for sample in flat(whole)]
        assert all(map(is_finished, flat(pieces)))
