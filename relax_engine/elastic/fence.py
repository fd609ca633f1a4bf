"""Keeping the removal of engines and the update of weights apart."""

from __future__ import annotations

import asyncio


class WeightFence:
    """Closed while the actor sends weights to the engines that it was told; none of them is taken away meanwhile.

    The other direction needs no wait: an engine leaves the list of receivers at once, and its process ends after that.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def closed(self) -> bool:
        """Whether a weight update is under way."""
        return not self._open.is_set()

    def close(self) -> None:
        """A weight update begins."""
        self._open.clear()

    def open(self) -> None:
        """It has ended."""
        self._open.set()

    async def wait(self, timeout_s: float) -> bool:
        """Return when none is under way; False when that takes longer."""
        if self._open.is_set():
            return True
        try:
            await asyncio.wait_for(self._open.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
