"""The actor's side of the critic: what it hands over, and where it waits."""

from __future__ import annotations

import asyncio

import numpy as np
from ray import serve

from relax_engine.checkpoint.manager import CheckpointManager
from relax_engine.components.mode import TARGETS
from relax_engine.components.partition import ROW_NUMBERS
from relax_engine.stream.client import StreamClient
from relax_engine.stream.columns import Column, ColumnBatch


class CriticTargets:
    """Returns and loss weights of one partition, computed in the actor's process, on their way to the critic.

    Every row that was read must come back, or the critic would wait for it: rows that were not
    trained, being too old, go with zeros, and the critic's own staleness check passes them over.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}
        self._targets: dict[str, dict[int, np.ndarray]] = {name: {} for name in TARGETS}

    def expect(self, part: ColumnBatch) -> None:
        """Rows that were read."""
        rows, lengths = part[ROW_NUMBERS].values, part["response_lengths"].values
        self._lengths.update(zip(rows.tolist(), lengths.tolist(), strict=True))

    def add(self, part: ColumnBatch) -> None:
        """Rows with their targets."""
        for position, row in enumerate(part[ROW_NUMBERS].values.tolist()):
            for name, targets in self._targets.items():
                targets[row] = part[name].row(position)

    def send(self, stream: StreamClient, partition: str) -> None:
        """Put the targets of all rows into the stream."""
        rows = sorted(self._lengths)
        columns = {
            name: Column.ragged(
                [targets.get(row, np.zeros(self._lengths[row], np.float32)) for row in rows], np.float32
            )
            for name, targets in self._targets.items()
        }
        stream.put_columns(partition, rows, ColumnBatch(columns))


async def critic_trained(rollout_id: int) -> dict[str, float]:
    """The critic's metrics of a step, once it has taken it."""
    metrics: dict[str, float] = await serve.get_app_handle("critic").trained.remote(rollout_id)
    return metrics


async def critic_keeps_from(checkpoints: CheckpointManager) -> None:
    """Let the critic delete checkpoints older than the actor's oldest in `checkpoints`."""
    iterations = await asyncio.to_thread(checkpoints.complete_iterations)
    if iterations:
        await serve.get_app_handle("critic").forget_before.remote(iterations[0])
