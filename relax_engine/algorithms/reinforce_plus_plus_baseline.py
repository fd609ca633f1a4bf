"""REINFORCE++ with a baseline: rewards centred in the group, normalised over the global batch.

`A = r - mean(group)` for every token, then whitened over all unmasked tokens of the batch: the group
gives the baseline, the batch the scale; PPO's clipped surrogate. The paper adds KL as a loss
(`--use-kl-loss --kl-loss-type k2`). Source: arXiv 2501.03262.
"""

from __future__ import annotations

import numpy as np

from relax_engine.algorithms.advantages import broadcast
from relax_engine.algorithms.grouping import center
from relax_engine.algorithms.loss import CLIP_FLAGS, token_ppo_loss
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AlgorithmSpec


def group_centered(rewards: np.ndarray, group_ids: np.ndarray, settings: AlgorithmSettings) -> np.ndarray:
    """`r - mean(group)`, f64 `[rows]`."""
    return center(rewards, group_ids)


SPEC = AlgorithmSpec(
    name="reinforce_plus_plus_baseline",
    summary="rewards centred in the group and normalised over the batch, clipped surrogate",
    reward_stage=group_centered,
    advantage=broadcast,
    policy_loss=token_ppo_loss,
    needs_whole_groups=True,
    min_group_size=2,
    accepts_kl_coef=True,
    normalize_advantages="required",
    flags=("disable_rewards_normalization", *CLIP_FLAGS),
)
