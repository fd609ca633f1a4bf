"""Group commit on the producer's side: puts that come while another one is on its way travel together.

One put alone leaves at once. While it is being stored, further puts of the same process queue up;
then all of them go as one object, one hold and one controller call. So a fast producer of small
batches pays a few messages per dozen batches, and a slow one waits for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition

from relax_engine.stream.blocks import OBJECT_BYTES
from relax_engine.stream.columns import ColumnBatch
from relax_engine.stream.delivery import PutItem
from relax_engine.stream.errors import StreamTimeoutError

_MAX_PARTS = 64
_QUEUE_BYTES = 32 << 20
_GRACE_S = 5.0


@dataclass(eq=False)
class PendingPut:
    """A put on its way. Not acknowledged means not promised."""

    partition: str
    batch: ColumnBatch | None
    item: PutItem
    end: float
    future: Future[range] = field(default_factory=Future)

    @property
    def left(self) -> float:
        """Seconds to the deadline."""
        return max(0.0, self.end - time.monotonic())

    def rows(self) -> range:
        """The rows' numbers in their partition, once they are stored and visible."""
        try:
            return self.future.result(self.left + _GRACE_S)
        except TimeoutError as error:
            if self.future.done():
                raise
            raise StreamTimeoutError(
                f"put into {self.partition!r}: earlier puts of this process kept it waiting until its deadline"
            ) from error

    async def arows(self) -> range:
        """`rows` for asyncio callers."""
        if not self.future.done():
            await asyncio.wait([asyncio.wrap_future(self.future)], timeout=self.left + _GRACE_S)
        return self.rows()


class Outbox:
    """The puts of one client, sent in order by one thread.

    `send(puts)` stores puts of one partition together and returns one result or error for each.
    Memory that is queued but not stored is bounded: `submit` waits while 32 MiB are queued.
    """

    def __init__(self, send: Callable[[Sequence[PendingPut]], Sequence[range | Exception]]) -> None:
        self._send = send
        self._queue: deque[PendingPut] = deque()
        self._bytes = 0
        self._changed = Condition()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stream-outbox")

    def submit(self, put: PendingPut) -> PendingPut:
        """Queue a put.

        Raises:
            StreamTimeoutError: the queue stayed full until the put's deadline.
        """
        with self._changed:
            room = self._changed.wait_for(lambda: not self._queue or self._bytes < _QUEUE_BYTES, put.left)
            if not room:
                raise StreamTimeoutError(
                    f"put into {put.partition!r}: {len(self._queue)} earlier puts ({self._bytes} bytes) of this "
                    f"process still wait, the first for partition {self._queue[0].partition!r}"
                )
            self._queue.append(put)
            self._bytes += put.item.nbytes
        self._thread.submit(self._flush)
        return put

    def _flush(self) -> None:
        puts = self._next()
        if not puts:
            return
        try:
            results = self._send(puts)
        except BaseException as error:
            for put in puts:
                put.future.set_exception(error)
            raise
        for put, result in zip(puts, results, strict=True):
            put.batch = None  # the caller may keep the put for long; its memory is needed for the next one
            if isinstance(result, Exception):
                put.future.set_exception(result)
            else:
                put.future.set_result(result)

    def _next(self) -> list[PendingPut]:
        """The longest run of queued puts that may travel together."""
        puts: list[PendingPut] = []
        size = 0
        with self._changed:
            while self._queue and len(puts) < _MAX_PARTS:
                put = self._queue[0]
                if puts and (put.partition != puts[0].partition or size + put.item.nbytes > OBJECT_BYTES):
                    break
                puts.append(self._queue.popleft())
                size += put.item.nbytes
            self._bytes -= size
            self._changed.notify_all()
        return puts
