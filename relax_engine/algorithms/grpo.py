"""GRPO: the samples of a prompt are one another's baseline.

Rewards are standardised inside the group, every token of a response gets the response's advantage,
and the loss is PPO's clipped surrogate. Source: DeepSeekMath (arXiv 2402.03300).

Dr. GRPO (arXiv 2503.20783) is this with `--disable-grpo-std-normalization` and
`--loss-constant-length`: no division by the group's deviation or by the response's own length.
"""

from __future__ import annotations

import numpy as np

from relax_engine.algorithms.advantages import broadcast
from relax_engine.algorithms.grouping import center, standardize
from relax_engine.algorithms.loss import token_ppo_loss
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec


def group_normalize(rewards: np.ndarray, group_ids: np.ndarray, settings: AlgorithmSettings) -> np.ndarray:
    """`(r - mean) / (std + 1e-6)` in each group, or `r - mean` without std normalisation; f64 `[rows]`."""
    stage = center if settings.disable_grpo_std_normalization else standardize
    return stage(rewards, group_ids)


SPEC = AlgorithmSpec(
    name="grpo",
    summary="group-standardised rewards, PPO clip; no critic",
    reward_stage=group_normalize,
    advantage=broadcast,
    policy_loss=token_ppo_loss,
    needs_whole_groups=True,
)
