"""Recording from a thread of its own: whoever has rows to record never waits and never fails for it.

What lives here: the queue and its bound, and what happens when the disk is slow, full or gone. What does not: rows
(`tables.py`), files (`parts.py`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from relax_engine.observe.rollouts.parts import PartTable

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_WAITING_ROWS = 65_536
_PART_ROWS = 4096
_PART_S = 3.0
_CLOSE_S = 30.0


class Recorder:
    """Appends rows to a `PartTable`, at the latest three seconds after they were offered.

    At most 65,536 rows wait; more are dropped whole offers at a time and counted, as are rows that cannot be written.
    """

    def __init__(self, directory: Path, *, rewind_to: int | None = None) -> None:
        """`rewind_to` removes rows of that step and later ones first."""
        self.dropped = 0
        """Rows that were not recorded."""
        self._directory, self._rewind_to = directory, rewind_to
        self._queue: queue.SimpleQueue[tuple[int, Callable[[], pa.Table]] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._failing = False
        self._thread = threading.Thread(target=self._work, name=f"recorder {directory.name}", daemon=True)
        self._thread.start()

    def offer(self, rows: int, make: Callable[[], pa.Table]) -> None:
        """Have the `rows` rows that `make` gives recorded; it is called in the recorder's thread."""
        with self._lock:
            if self._waiting + rows > _WAITING_ROWS:
                self.dropped += rows
                return
            self._waiting += rows
        self._queue.put((rows, make))

    def close(self, deadline_s: float = _CLOSE_S) -> None:
        """Write what waits, for at most `deadline_s` seconds."""
        self._queue.put(None)
        self._thread.join(deadline_s)
        if self._thread.is_alive() or self.dropped:
            logger.warning("%d sample(s) are not in %s", self.dropped + self._waiting, self._directory)

    def _work(self) -> None:
        parts: PartTable | None = None
        ended = False
        while not ended:
            offers, ended = self._gather()
            rows = sum(count for count, _ in offers)
            try:
                if parts is None:
                    parts = PartTable(self._directory)
                    if self._rewind_to is not None:
                        parts.rewind(self._rewind_to)
                if offers:
                    self._append(parts, [make for _, make in offers])
            except Exception as error:  # noqa: BLE001 - a full disk, or a sample nobody thought of: training goes on
                self.dropped += rows
                if not self._failing:
                    self._failing = True
                    logger.warning("samples are not recorded in %s: %s", self._directory, error)
            with self._lock:
                self._waiting -= rows

    def _gather(self) -> tuple[list[tuple[int, Callable[[], pa.Table]]], bool]:
        """Offers for one part, and whether the end has come."""
        offers: list[tuple[int, Callable[[], pa.Table]]] = []
        deadline = None
        while sum(count for count, _ in offers) < _PART_ROWS:
            try:
                item = self._queue.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if item is None:
                return offers, True
            offers.append(item)
            deadline = time.monotonic() + _PART_S if deadline is None else deadline
        return offers, False

    @staticmethod
    def _append(parts: PartTable, makers: list[Callable[[], pa.Table]]) -> None:
        import pyarrow as pa

        parts.append(pa.concat_tables([make() for make in makers]))
