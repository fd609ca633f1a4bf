"""From raw rewards to the rewards an algorithm's advantage is made of.

What lives here: excluding rewards that are not numbers and calling the algorithm's reward stage.
What does not: scoring (`relax_engine.rewards`) and group statistics (`grouping`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec

if TYPE_CHECKING:
    from torch import Tensor


@overload
def normalize_rewards(
    spec: AlgorithmSpec, rewards: Tensor, group_ids: Tensor | npt.ArrayLike, config: Any = None
) -> Tensor: ...
@overload
def normalize_rewards(
    spec: AlgorithmSpec, rewards: npt.ArrayLike, group_ids: npt.ArrayLike, config: Any = None
) -> np.ndarray: ...
def normalize_rewards(spec: AlgorithmSpec, rewards: Any, group_ids: Any, config: Any = None) -> np.ndarray | Tensor:
    """The algorithm's reward stage over whole groups, in any order and of any sizes.

    Rows whose reward is NaN or infinite take no part in their group's statistics and come back as
    0; count them with `excluded_rows`. Statistics are computed in double precision.

    Args:
        spec: The algorithm.
        rewards: `[rows]`.
        group_ids: `[rows]`; rows of one prompt share an id.
        config: Flags, as any object with their field names: `disable_rewards_normalization` and what the
            stage itself reads.

    Returns:
        f32 `[rows]`, finite: a tensor where `rewards` is one, else an array.

    Raises:
        ValueError: `rewards` and `group_ids` differ in length.
    """
    values = np.asarray(rewards, np.float64)
    ids = np.asarray(group_ids)
    if values.shape != ids.shape or values.ndim != 1:
        raise ValueError(f"need one group id per reward, got rewards {values.shape} and group ids {ids.shape}")
    settings = AlgorithmSettings.from_config(config)
    keep = ~excluded_rows(values)
    result = np.zeros(len(values), np.float64)
    if settings.disable_rewards_normalization:
        result[keep] = values[keep]
    elif keep.any():
        result[keep] = spec.reward_stage(values[keep], ids[keep], settings)
    if not isinstance(rewards, np.ndarray) and hasattr(rewards, "new_tensor"):
        import torch

        return torch.from_numpy(result.astype(np.float32))
    return result.astype(np.float32)


def excluded_rows(rewards: npt.ArrayLike) -> np.ndarray:
    """Bool `[rows]`: rows whose reward is NaN or infinite."""
    return ~np.isfinite(np.asarray(rewards, np.float64))
