"""Reading a partition of the stream in the parts in which it is trained."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from relax_engine.components.mode import rows_per_part, steps_per_rollout
from relax_engine.config import RunConfig
from relax_engine.stream.client import StreamClient
from relax_engine.stream.columns import Column, ColumnBatch

ROW_NUMBERS = "row_numbers"
"""Column that the reader adds: the rows' numbers in the partition."""


class PartitionReader:
    """The rows of one partition as optimizer steps of parts, each part as soon as its rows have every column.

    Every step but the last has `global_batch_size` rows; the last takes what is left until the
    partition is sealed. Parts are whole prompt groups. The stream logs what it delivered under
    (task, partition, sequence number), so a reader that starts again gets the same parts.
    """

    def __init__(
        self,
        stream: StreamClient,
        config: RunConfig,
        *,
        task: str,
        partition: str,
        columns: Sequence[str],
    ) -> None:
        self.waited = 0.0
        """Seconds spent waiting for rows."""
        self.meta: dict[str, Any] = {}
        """What the partition was sealed with; filled by the last step."""
        self._stream = stream
        self._task = task
        self._partition = partition
        self._columns = list(columns)
        self._deadline_s: float = config.flat.wait_timeout
        self._steps = steps_per_rollout(config)
        self._step_rows: int = config.flat.global_batch_size
        self._part_rows = rows_per_part(config)
        self._sequence = 0

    def parts(self, step: int) -> Iterator[ColumnBatch]:
        """The parts of one optimizer step; steps are read in order, each to its end.

        Raises:
            StreamTimeoutError: names what was waited for.
        """
        last = step == self._steps - 1
        left = self._step_rows
        while last or left > 0:
            batch = self._next(self._part_rows if last else min(self._part_rows, left))
            if batch is None:
                return
            left -= batch.num_rows
            yield batch

    def _next(self, max_rows: int) -> ColumnBatch | None:
        started = time.time()
        delivery = self._stream.take(
            self._task, self._partition, self._sequence, self._columns, max_rows, deadline_s=self._deadline_s
        )
        self.waited += time.time() - started
        if delivery.end:
            self.meta = delivery.meta
            return None
        self._sequence += 1
        return self._stream.fetch(delivery).with_columns(**{ROW_NUMBERS: Column.fixed(delivery.rows)})
