"""`--rollout-data-postprocess-path`: a user's last word on a batch before it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relax_engine.multimodal.media import TRAIN_INPUTS
from relax_engine.stream.columns import Column, ColumnBatch


def postprocessed(
    function: Callable[..., Any], args: Any, batch: ColumnBatch, columns: Mapping[str, Column]
) -> dict[str, Column]:
    """`columns` (advantages, returns, loss weights, ...) as `function(args, rollout_data)` leaves them.

    `rollout_data` is a dictionary with an entry per sample: per-token columns as lists of tensors, others as lists of
    numbers. The function changes the tensors of `columns`, or puts other lists in their place; what it does to
    columns of `batch` is lost.

    Raises:
        ValueError: a column came back with other lengths.
    """
    import torch

    def rows(column: Column) -> list[Any]:
        if column.offsets is None:
            return column.values.tolist()
        return list(torch.from_numpy(np.array(column.values)).split(column.lengths.tolist()))

    data = {name: rows(column) for name, column in {**batch, **columns}.items() if name not in ("tokens", TRAIN_INPUTS)}
    function(args, data)
    changed = {}
    for name, column in columns.items():
        lengths, found = column.lengths.tolist(), [len(row) for row in data[name]]
        if found != lengths:
            raise ValueError(
                f"--rollout-data-postprocess-path: {name} have lengths {found[:8]}, the responses {lengths[:8]}"
            )
        flat = torch.cat([torch.as_tensor(row, dtype=torch.float32) for row in data[name]]) if lengths else None
        changed[name] = column if flat is None else Column(flat.numpy(), column.offsets)
    return changed
