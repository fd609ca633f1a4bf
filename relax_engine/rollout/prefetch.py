"""Prompts made ready ahead of their use, in a thread, so that tokenising never holds up requests."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from relax_engine.rollout.data_source import PromptDataSource
from relax_engine.types import SampleGroup


class PromptPrefetcher:
    """Groups of a data source by number; the next `ahead` numbers are under way. Ends with `close`."""

    def __init__(self, source: PromptDataSource, ahead: int) -> None:
        self.source, self.ahead = source, ahead
        self._executor = ThreadPoolExecutor(source.parallel, thread_name_prefix="prompts")
        self._ready: dict[int, Future[SampleGroup]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def group(self, number: int) -> SampleGroup:
        """Prompt group `number`.

        Raises:
            PromptDataError: its row cannot be used; names it.
        """
        wanted = self._ready.pop(number, None) or self._executor.submit(self.source.group, number)
        for later in range(number + 1, number + 1 + self.ahead):
            if later not in self._ready:
                self._ready[later] = self._executor.submit(self.source.group, later)
        for passed in [key for key in self._ready if key < number]:
            self._ready.pop(passed).cancel()
        return await asyncio.wrap_future(wanted)

    def close(self) -> None:
        """Stop; what is under way is given up."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self.source.close()
