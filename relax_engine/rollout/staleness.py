"""The lag of samples when they are trained: the check behind the gate, and its metrics.

The gate and the placement window keep lags within the bound by construction. This looks at what the engines say
they used, so that no fault elsewhere can train a sample that is too old.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from relax_engine.stream.columns import ColumnBatch


def split_stale(batch: ColumnBatch, version: int, bound: int) -> tuple[ColumnBatch, int, dict[str, float]]:
    """The rows that may be trained at weight `version`, how many others there were, and the lags of the former.

    `first_version` is the oldest version among a response's token segments, so no token of a row lags more than
    `version - first_version`; an empty response has none (-1) and lags 0. A group with one row beyond `bound`
    leaves as a whole.
    """
    first = batch["first_version"].values
    lag = np.where(first < 0, 0, version - first)
    groups = batch["group_index"].values
    stale = np.isin(groups, groups[lag > bound])
    kept = lag[~stale]
    metrics = {f"rollout/staleness/count/{value}": float(n) for value, n in Counter(kept.tolist()).items()}
    if len(kept):
        metrics |= {
            "rollout/staleness/avg": float(kept.mean()),
            "rollout/staleness/max": float(kept.max()),
            "rollout/staleness/min": float(kept.min()),
        }
    return (batch.select(np.flatnonzero(~stale)) if stale.any() else batch), int(stale.sum()), metrics
