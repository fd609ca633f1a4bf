"""Asking an engine what it computes: the check that a weight sync really arrived."""

from __future__ import annotations

import numpy as np

from relax_engine.backends.engines.client import EngineClient
from relax_engine.stream.columns import Column, ColumnBatch


async def probe_engine(url: str, batch: ColumnBatch, expected: Column, *, timeout_s: float) -> float:
    """Largest absolute difference between the engine's and the trainer's log-probs of response tokens.

    Args:
        url: The engine.
        batch: Rows with `tokens` and `response_lengths`.
        expected: The trainer's log-probs at temperature 1, in compact layout.
        timeout_s: Deadline of the request, in seconds.
    """
    sequences = [batch["tokens"].row(row).tolist() for row in range(batch.num_rows)]
    async with EngineClient(url, timeout_s=timeout_s) as client:
        scored = await client.score(sequences)
    worst = 0.0
    for row, log_probs in enumerate(scored):
        length = int(batch["response_lengths"].values[row])
        if length:
            worst = max(worst, float(np.abs(log_probs[-length:] - expected.row(row)).max()))
    return worst
