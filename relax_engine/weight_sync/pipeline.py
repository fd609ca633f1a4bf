"""Working one item ahead: the next bucket is gathered and packed while the present one travels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TypeVar

T = TypeVar("T")


async def one_ahead(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """The items of a blocking iterator, each made in a worker thread while the caller has the one before.

    When the caller stops early, the item in the making is waited for, so that `items` is at rest afterwards.
    """
    upcoming = asyncio.ensure_future(asyncio.to_thread(next, items, None))
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.ensure_future(asyncio.to_thread(next, items, None))
            yield item
    finally:
        await asyncio.gather(upcoming, return_exceptions=True)
