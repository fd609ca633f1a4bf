"""A user's last word on advantages and weights."""

from typing import Any

import numpy as np
import pytest

from relax_engine.components.postprocess import postprocessed
from relax_engine.stream.columns import Column, ColumnBatch

OFFSETS = np.array([0, 2, 2, 5])
BATCH = ColumnBatch(
    {
        "tokens": Column(np.arange(8), np.array([0, 3, 4, 8])),
        "raw_reward": Column(np.array([1.0, 2.0, 3.0], np.float32)),
        "loss_masks": Column(np.ones(5, np.uint8), OFFSETS),
    }
)
COLUMNS = {
    "advantages": Column(np.arange(5, dtype=np.float32), OFFSETS),
    "loss_weights": Column(np.ones(5, np.float32), OFFSETS),
}


def test_changes_in_place_and_new_lists_count() -> None:
    def function(args: Any, data: dict[str, Any]) -> None:
        assert args == "args"
        assert set(data) == {"raw_reward", "loss_masks", "advantages", "loss_weights"}
        assert [len(row) for row in data["advantages"]] == [2, 0, 3]
        for advantage, reward in zip(data["advantages"], data["raw_reward"], strict=True):
            advantage *= reward
        data["loss_weights"] = [row * 2 for row in data["loss_weights"]]

    changed = postprocessed(function, "args", BATCH, COLUMNS)
    assert changed["advantages"].values.tolist() == [0, 1, 6, 9, 12]
    assert changed["loss_weights"].values.tolist() == [2] * 5
    assert COLUMNS["advantages"].values.tolist() == [0, 1, 2, 3, 4]


def test_other_lengths_are_refused() -> None:
    def function(args: Any, data: dict[str, Any]) -> None:
        data["advantages"] = data["advantages"][:1]

    with pytest.raises(ValueError, match=r"advantages have lengths \[2\], the responses \[2, 0, 3\]"):
        postprocessed(function, None, BATCH, COLUMNS)
