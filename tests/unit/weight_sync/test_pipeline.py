"""Working one item ahead, and calling receivers together."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from relax_engine.weight_sync.pipeline import one_ahead


async def test_the_next_item_is_made_while_the_present_one_is_used() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(4):
            made.append(number)
            yield number

    seen = []
    async for item in one_ahead(items()):
        seen.append(item)
        async with asyncio.timeout(10):
            while len(made) < min(item + 2, 4):
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert len(made) == min(item + 2, 4), "one ahead, and never more"
    assert seen == [0, 1, 2, 3]


async def test_an_error_of_the_items_reaches_the_caller() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("gather failed")

    ahead = one_ahead(items())
    assert await anext(ahead) == 1
    with pytest.raises(ValueError, match="gather failed"):
        await anext(ahead)


async def test_after_an_early_end_nothing_is_at_work() -> None:
    """A collective gather goes on from where it is; two threads in one generator would be an error."""
    working = threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(6):
            working.set()
            time.sleep(0.05)
            working.clear()
            yield number

    items = numbers()
    ahead = one_ahead(items)
    assert await anext(ahead) == 0
    await ahead.aclose()
    assert not working.is_set()
    assert list(items) == [2, 3, 4, 5]
