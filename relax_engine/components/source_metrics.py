"""How near a student is to each of its teachers: metrics by source of the samples.

What lives here: means over the rows of a teacher. What does not: which rows those are
(`relax_engine.rollout.teachers`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relax_engine.stream.columns import ColumnBatch

SOURCE_COLUMNS = ("teacher", "teacher_log_probs", "rollout_log_probs", "loss_masks", "raw_reward")
"""What `source_metrics` reads."""


def source_metrics(batch: ColumnBatch, names: Sequence[str]) -> dict[str, float]:
    """`by_source/<name>/...` for each teacher that has rows.

    `mean_reward` and `accuracy` (share of rewards above 0) over rows; `teacher_logp`, `student_logp` (of the policy
    that sampled), and their difference `logp_gap`, which estimates KL(student || teacher), over unmasked tokens.

    Args:
        batch: Rows with `SOURCE_COLUMNS`.
        names: Sources in the order of the column `teacher`.
    """
    metrics: dict[str, float] = {}
    for index in np.unique(batch["teacher"].values):
        rows = batch.select(np.flatnonzero(batch["teacher"].values == index))
        name, rewards = f"by_source/{names[index]}", rows["raw_reward"].values
        counted = rows["loss_masks"].values != 0
        metrics[f"{name}/mean_reward"] = float(rewards.mean())
        metrics[f"{name}/accuracy"] = float((rewards > 0).mean())
        if counted.any():
            teacher, student = (rows[key].values[counted].mean() for key in ("teacher_log_probs", "rollout_log_probs"))
            metrics[f"{name}/teacher_logp"] = float(teacher)
            metrics[f"{name}/student_logp"] = float(student)
            metrics[f"{name}/logp_gap"] = float(student - teacher)
    return metrics
