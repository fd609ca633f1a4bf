"""Means by teacher."""

from __future__ import annotations

import numpy as np
import pytest

from relax_engine.components.source_metrics import source_metrics
from relax_engine.stream.columns import Column, ColumnBatch


def test_each_source_has_its_own_means() -> None:
    batch = ColumnBatch(
        {
            "teacher": Column.fixed([2, 0, 2], np.int32),
            "teacher_log_probs": Column.ragged([[-1.0, -3.0], [], [-5.0]], np.float32),
            "rollout_log_probs": Column.ragged([[-0.5, -9.0], [], [-4.0]], np.float32),
            "loss_masks": Column.ragged([[1, 0], [], [1]], np.uint8),
            "raw_reward": Column.fixed([1.0, -1.0, 0.0], np.float32),
        }
    )
    assert source_metrics(batch, ["law", "math", "code"]) == pytest.approx(
        {
            "by_source/law/mean_reward": -1.0,  # no token, hence no log-probs
            "by_source/law/accuracy": 0.0,
            "by_source/code/mean_reward": 0.5,
            "by_source/code/accuracy": 0.5,
            "by_source/code/teacher_logp": -3.0,
            "by_source/code/student_logp": -2.25,
            "by_source/code/logp_gap": 0.75,
        }
    )
