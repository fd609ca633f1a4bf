"""How many calls run at a time, and how many steps that makes."""

import asyncio
import math

import pytest

from relax_engine.utils.ramp import Ramp


async def fan_out(count: int, *, fails: bool) -> tuple[int, int]:
    """Steps, and the most calls at a time, where every call takes as long as any other."""
    ramp, running, most = Ramp(64), 0, 0

    async def call() -> None:
        nonlocal running, most
        async with ramp.turn():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            if fails:
                raise ConnectionError("nobody there")

    await asyncio.gather(*(call() for _ in range(count)), return_exceptions=True)
    return ramp.steps, most


@pytest.mark.parametrize("count", [1, 64, 65, 192, 193, 1000, 4000])
async def test_a_fan_out_takes_a_logarithm_of_steps(count: int) -> None:
    steps, most = await fan_out(count, fails=False)
    assert steps == math.ceil(math.log2(count / 64 + 1))
    assert most <= 64 * 2 ** (steps - 1)


async def test_servers_that_are_away_are_not_called_more_at_a_time() -> None:
    assert await fan_out(640, fails=True) == (10, 64)
