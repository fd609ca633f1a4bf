"""Advantages by a user's function, in place of the algorithm's own.

What lives here: the contract of `--custom-advantage-function-path`. What does not: whitening and loss weights, which
follow as for any algorithm (`batch`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AdvantageInputs, AlgorithmSpec

if TYPE_CHECKING:
    from torch import Tensor


def with_custom_advantage(
    spec: AlgorithmSpec, function: Callable[..., Any], args: Any, columns: Iterable[str]
) -> AlgorithmSpec:
    """`spec` with `function(args, rollout_data)` as its advantage; its reward stage and loss stay.

    `rollout_data` is a dictionary with one entry per sample of the optimizer step: `rewards` (floats, after the reward
    stage), `loss_masks`, `response_lengths` (integers), and whatever else of `columns` there is (`log_probs`,
    `ref_log_probs`, `rollout_log_probs`, `values`, ...), per-token ones as lists of tensors. The function puts
    `advantages` (and `returns`, else the same) into it, lists with one tensor of response length per sample.
    """

    def advantage(inputs: AdvantageInputs, settings: AlgorithmSettings) -> dict[str, Tensor]:
        lengths = inputs.offsets.diff().tolist()
        data: dict[str, Any] = {
            name: list(values.split(lengths)) if values.numel() == inputs.mask.numel() else values.tolist()
            for name, values in inputs.columns.items()
        }
        data |= {
            "rewards": inputs.rewards.tolist(),
            "loss_masks": list(inputs.mask.float().split(lengths)),
            "response_lengths": lengths,
        }
        function(args, data)
        return {name: _compact(data, name, lengths, inputs.mask) for name in ("advantages", "returns")}

    return dataclasses.replace(spec, advantage=advantage, advantage_columns=tuple(columns))


def _compact(data: dict[str, Any], name: str, lengths: list[int], mask: Tensor) -> Tensor:
    import torch

    rows = data.get(name, data.get("advantages"))
    if rows is None:
        raise ValueError("--custom-advantage-function-path: the function put no 'advantages' into rollout_data")
    found = [len(row) for row in rows]
    if found != lengths:
        raise ValueError(
            f"--custom-advantage-function-path: {name} have lengths {found[:8]}, the responses {lengths[:8]}"
        )
    return torch.cat([torch.as_tensor(row, dtype=torch.float32) for row in rows]) * mask
