"""Log-probs under the weights that sampled: `--keep-old-actor`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from relax_engine.stream.columns import Column, ColumnBatch

if TYPE_CHECKING:
    from relax_engine.components.train_group import TrainGroup

logger = logging.getLogger(__name__)


class OldPolicies:
    """Copies of the published weights of a group, one a version, for as long as a sample may be made with them.

    With weights of version `v` published, samples of `v - bound` and later may still come, so older
    copies are given up. A process that was started again has none of the versions before; their
    samples get the oldest copy there is, or the present weights.
    """

    def __init__(self, group: TrainGroup, *, bound: int) -> None:
        self._group = group
        self._bound = bound
        self._kept: list[int] = []

    def published(self, version: int) -> None:
        """Keep the group's present weights as `version`."""
        self._group.snapshot(_tag(version))
        if version not in self._kept:
            self._kept.append(version)
        while self._kept[0] < version - self._bound:
            self._group.discard_snapshot(_tag(self._kept.pop(0)))

    def forward_policy(
        self, batch: ColumnBatch, *, temperature: float, max_tokens: int, experts: bool = False
    ) -> ColumnBatch:
        """As `TrainGroup.forward_policy`, each row under the oldest version of its tokens that count.

        Rows without such tokens get zeros, or where `experts` are asked for what the present weights say.

        Args:
            batch: columns `tokens`, `response_lengths` and `first_version`.
        """
        first = batch["first_version"].values
        answers, order = [], []
        for version in np.unique(first).tolist():
            index = np.flatnonzero(first == version)
            rows = batch.select(index)
            if version < 0 and not experts:
                lengths = rows["response_lengths"].values.tolist()
                answers.append(
                    ColumnBatch({"log_probs": Column.ragged([np.zeros(n, np.float32) for n in lengths], np.float32)})
                )
            else:
                answers.append(
                    self._group.forward_policy(
                        rows,
                        temperature=temperature,
                        max_tokens=max_tokens,
                        weights=self._copy(version) if version >= 0 else None,
                        experts=experts,
                    )
                )
            order.append(index)
        return ColumnBatch.concat(answers).select(np.argsort(np.concatenate(order), kind="stable"))

    def _copy(self, version: int) -> str | None:
        """The snapshot to use for samples of `version`."""
        if version in self._kept:
            return _tag(version)
        nearest = next((kept for kept in self._kept if kept > version), None)
        logger.warning(
            "the weights of version %d were lost in a restart; its samples' old log-probs are those of %s",
            version,
            "the present weights" if nearest is None else f"version {nearest}",
        )
        return None if nearest is None else _tag(nearest)


def _tag(version: int) -> str:
    return f"version_{version}"
