"""Engines that die, fall silent or are too slow while requests are in flight."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_continued import LENGTH, SAMPLING, flat, make_groups
from test_user_functions import BRIDGE, custom

from relax_engine.backends.engines.launch import EngineProcess, launch_engine
from relax_engine.backends.engines.types import EngineDeadlineError, EngineRefusedError
from relax_engine.rollout.generate import Generator
from relax_engine.rollout.partial import is_finished
from relax_engine.rollout.pool import EnginePool, RolloutError


async def test_requests_of_a_killed_engine_are_served_by_another(
    engines: list[EngineProcess], model: Path, tokenizer: Any
) -> None:
    """Each sample once, as if nothing had happened; then nobody is left, and the error says why."""
    expected, groups = make_groups(tokenizer, 4), make_groups(tokenizer, 4)
    seen: list[tuple[str, str]] = []
    doomed = launch_engine(model, max_total_tokens=40000)
    async with EnginePool(
        [doomed.url, engines[0].url], timeout_s=60.0, on_quarantine=lambda url, reason: seen.append((url, reason))
    ) as pool:
        generator = Generator(pool, SAMPLING)
        tasks = [asyncio.create_task(generator.generate([group])) for group in groups]
        await asyncio.sleep(0)
        assert [engine.outstanding for engine in pool.engines.values()] == [4, 4]
        await asyncio.sleep(0.02)
        assert pool.engines[doomed.url].outstanding
        doomed.process.kill()
        await asyncio.gather(*tasks)
        assert [engine.outstanding for engine in pool.engines.values()] == [0, 0]
        assert [url for url, _ in seen] == [doomed.url]
        assert [engine.url for engine in pool.usable()] == [engines[0].url]
        await generator.generate(expected)
        assert [s.rollout_tokens for s in flat(groups)] == [s.rollout_tokens for s in flat(expected)]
        assert all(map(is_finished, flat(groups)))
        # A user's function sees a broken connection; its sample is as it was when it is called again.
        pool.engines[doomed.url].quarantined = None
        mine = make_groups(tokenizer, 1)
        await Generator(pool, SAMPLING, custom=custom("generate")).generate(mine)
        assert all(map(is_finished, flat(mine)))
        assert all(sample.loss_mask.count(0) == len(BRIDGE) for sample in flat(mine))
        assert [engine.url for engine in pool.usable()] == [engines[0].url]
        pool.quarantine(engines[0].url, "no weights")
        with pytest.raises(RolloutError, match=rf"no engine can serve the rollout: .*{doomed.url}.*no weights"):
            await generator.generate(make_groups(tokenizer, 1))
    doomed.close()


async def test_a_slow_request_of_a_healthy_engine_is_an_error_with_the_way_out(
    engines: list[EngineProcess], tokenizer: Any
) -> None:
    async with EnginePool([engines[0].url], timeout_s=0.05) as pool:
        with pytest.raises(EngineDeadlineError, match=r"did not answer within 0\.05 s") as error:
            await Generator(pool, SAMPLING).generate(make_groups(tokenizer, 8))
        assert "raise --rollout-http-timeout" in error.value.__notes__[0]
        assert pool.usable()


async def test_a_refused_request_does_not_cost_an_engine(engines: list[EngineProcess], tokenizer: Any) -> None:
    groups = make_groups(tokenizer, 1)
    groups[0][0].tokens *= LENGTH
    async with EnginePool([engine.url for engine in engines], timeout_s=10.0) as pool:
        with pytest.raises(EngineRefusedError, match="above the context length"):
            await Generator(pool, SAMPLING).generate(groups)
        assert len(pool.usable()) == 2
