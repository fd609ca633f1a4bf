"""Calling many servers: few at first, and more the more of them answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Ramp:
    """Turns for calls: `first` at once, and one more at a time with every call that succeeds, as in TCP's slow start.

    n servers that answer alike are called in `ceil(log2(n / first + 1))` steps, a step being a call that waited for
    others. A call that fails gives its turn on and adds none, so many servers that are away at once are not met with
    more and more connections.
    """

    def __init__(self, first: int = 64) -> None:
        self.steps = 0
        """Calls that waited for one another, in the longest such row until now."""
        self._turns: asyncio.Queue[int] = asyncio.Queue()
        for _ in range(first):
            self._turns.put_nowait(1)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and keep it for the block."""
        step = await self._turns.get()
        self.steps = max(self.steps, step)
        try:
            yield
        except BaseException:
            self._turns.put_nowait(step + 1)
            raise
        self._turns.put_nowait(step + 1)
        self._turns.put_nowait(step + 1)
