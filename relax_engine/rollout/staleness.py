"""The lag of samples when they are trained: the check behind the gate, and its metrics.

The gate and the placement window keep lags within the bound by construction. This looks at what the engines say
they used, so that no fault elsewhere can train a sample that is too old.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from relax_engine.stream.columns import ColumnBatch


@dataclass(slots=True)
class StalenessCheck:
    """Lets through the prompt groups of one partition of which no sample is older than `bound` at `version`.

    A sample's age is that of its oldest tokens in the loss: `version` minus `first_version`. A response
    that spans weight updates has tokens of `first_version .. last_version`, so no segment of it that
    counts is older than that. A group with one sample that is too old goes as a whole, since its
    samples were normalised together. A sample without a token that counts has no age.
    """

    version: int
    bound: int
    dropped: int = 0
    """Samples that were too old, or in a group with one."""
    _ages: Counter[int] = field(default_factory=Counter)
    _spanning: int = 0

    def keep(self, batch: ColumnBatch) -> ColumnBatch:
        """The rows of `batch` (columns `first_version`, `last_version`, `group_index`) that may be trained."""
        first, last = batch["first_version"].values, batch["last_version"].values
        age = np.where(first < 0, 0, self.version - first)
        groups = batch["group_index"].values
        stale = np.isin(groups, groups[age > self.bound])
        self._ages.update(age[~stale].tolist())
        self._spanning += int((last > first)[~stale].sum())
        self.dropped += int(stale.sum())
        return batch.select(np.flatnonzero(~stale)) if stale.any() else batch

    def metrics(self) -> dict[str, float]:
        """`rollout/staleness/...`: samples by age, the extremes and the mean, and the share that spans an update."""
        metrics = {f"rollout/staleness/count/{age}": float(count) for age, count in sorted(self._ages.items())}
        samples = self._ages.total()
        if samples:
            metrics["rollout/staleness/avg"] = sum(age * count for age, count in self._ages.items()) / samples
            metrics["rollout/staleness/max"] = float(max(self._ages))
            metrics["rollout/staleness/min"] = float(min(self._ages))
            metrics["rollout/staleness/spanning_ratio"] = self._spanning / samples
        return metrics
