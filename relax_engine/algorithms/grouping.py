"""Statistics of rewards inside prompt groups, found by group id and never by position.

What lives here: the NumPy functions from which reward stages are made. What does not: which
algorithm uses which (`grpo` and its siblings) and the handling of failed rewards (`rewards`).
"""

from __future__ import annotations

import numpy as np

from relax_engine.algorithms.settings import AlgorithmSettings

STD_EPSILON = 1e-6
GROUP_FLAGS = ("disable_rewards_normalization", "disable_grpo_std_normalization")
"""Flags that `group_normalize` and the stage before it read."""


def group_mean(rewards: np.ndarray, group_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean reward of each row's group, and the group's size.

    Args:
        rewards: f64 `[rows]`, finite.
        group_ids: `[rows]`, any integers in any order.

    Returns:
        `(mean, size)`, both f64 `[rows]`.
    """
    _, inverse = np.unique(group_ids, return_inverse=True)
    size = np.bincount(inverse)
    mean = np.bincount(inverse, weights=rewards) / size
    return mean[inverse], size[inverse].astype(np.float64)


def unchanged(rewards: np.ndarray, group_ids: np.ndarray, settings: AlgorithmSettings) -> np.ndarray:
    """The rewards themselves: the reward stage of algorithms whose baseline is not the group's."""
    return rewards


def center(rewards: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """`r - mean(group)`, f64 `[rows]`; exactly 0 where all rewards of the group are equal."""
    _, first, inverse = np.unique(group_ids, return_index=True, return_inverse=True)
    shifted = rewards - rewards[first][inverse]
    mean, _ = group_mean(shifted, group_ids)
    return shifted - mean


def standardize(rewards: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """`(r - mean(group)) / (std(group) + 1e-6)` with the unbiased (n - 1) standard deviation.

    A group of one, and a group whose rewards are all equal, gives 0: it holds no comparison to
    learn from. Source: DeepSeekMath (arXiv 2402.03300), eq. in section 4.1.2.

    Returns:
        f64 `[rows]`.
    """
    centered = center(rewards, group_ids)
    mean_square, size = group_mean(centered**2, group_ids)
    std = np.sqrt(mean_square * size / np.maximum(size - 1.0, 1.0))
    return centered / (std + STD_EPSILON)


def group_normalize(rewards: np.ndarray, group_ids: np.ndarray, settings: AlgorithmSettings) -> np.ndarray:
    """The reward stage of GRPO and its relatives: `standardize`, or `center` without std normalisation."""
    stage = center if settings.disable_grpo_std_normalization else standardize
    return stage(rewards, group_ids)
