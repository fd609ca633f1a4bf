"""PPO: a critic's values are the baseline of every token.

Rewards stay as they are; the KL penalty of `--kl-coef` enters at every token, the reward at the last
one; advantages by GAE; PPO's clipped surrogate. Source: arXiv 1707.06347 (loss), 1506.02438 (GAE),
2203.02155 (KL inside the reward). The critic's own loss is in `value`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.grouping import unchanged
from relax_engine.algorithms.loss import CLIP_FLAGS, token_ppo_loss
from relax_engine.algorithms.returns import gae, token_rewards
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AdvantageInputs, AlgorithmSpec

if TYPE_CHECKING:
    from torch import Tensor


def gae_advantage(inputs: AdvantageInputs, settings: AlgorithmSettings) -> dict[str, Tensor]:
    """GAE advantages and the critic's targets, f32 `[R]`, from the column `values`."""
    advantages, returns = gae(
        token_rewards(inputs),
        inputs.columns["values"],
        inputs.mask,
        inputs.offsets,
        gamma=settings.gamma,
        lambd=settings.lambd,
    )
    return {"advantages": advantages.float(), "returns": returns.float()}


SPEC = AlgorithmSpec(
    name="ppo",
    summary="a critic's baseline, generalised advantage estimation, clipped surrogate",
    reward_stage=unchanged,
    advantage=gae_advantage,
    policy_loss=token_ppo_loss,
    advantage_columns=("values",),
    needs_critic=True,
    accepts_kl_coef=True,
    flags=("gamma", "lambd", "value_clip", *CLIP_FLAGS),
)
