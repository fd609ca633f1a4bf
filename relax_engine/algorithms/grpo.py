"""GRPO: the samples of a prompt are one another's baseline.

Rewards are standardised inside the group, every token of a response gets the response's advantage,
and the loss is PPO's clipped surrogate. Source: DeepSeekMath (arXiv 2402.03300).

Dr. GRPO (arXiv 2503.20783) is this with `--disable-grpo-std-normalization` and
`--loss-constant-length`: no division by the group's deviation or by the response's own length.
"""

from __future__ import annotations

from relax_engine.algorithms.advantages import broadcast
from relax_engine.algorithms.grouping import GROUP_FLAGS, group_normalize
from relax_engine.algorithms.loss import CLIP_FLAGS, token_ppo_loss
from relax_engine.algorithms.spec import AlgorithmSpec

SPEC = AlgorithmSpec(
    name="grpo",
    summary="group-normalised rewards, one advantage per response, clipped surrogate",
    reward_stage=group_normalize,
    advantage=broadcast,
    policy_loss=token_ppo_loss,
    needs_whole_groups=True,
    accepts_kl_coef=True,
    flags=(*GROUP_FLAGS, *CLIP_FLAGS),
)
