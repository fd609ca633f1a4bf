"""REINFORCE++: every token's discounted return, normalised over the global batch.

Token rewards are the KL penalty of `--kl-coef` at each token and the reward at the last one;
`A_t = sum_{s >= t} gamma^(s - t) u_s`, then whitened over all unmasked tokens of the batch, which takes
the place of a baseline; PPO's clipped surrogate. Source: arXiv 2501.03262.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_engine.algorithms.grouping import unchanged
from relax_engine.algorithms.loss import CLIP_FLAGS, token_ppo_loss
from relax_engine.algorithms.returns import discounted_returns, token_rewards
from relax_engine.algorithms.settings import AlgorithmSettings
from relax_engine.algorithms.spec import AdvantageInputs, AlgorithmSpec

if TYPE_CHECKING:
    from torch import Tensor


def return_advantage(inputs: AdvantageInputs, settings: AlgorithmSettings) -> dict[str, Tensor]:
    """Discounted returns as advantages, f32 `[R]`, before whitening."""
    returns = discounted_returns(token_rewards(inputs), inputs.mask, inputs.offsets, gamma=settings.gamma).float()
    return {"advantages": returns, "returns": returns}


SPEC = AlgorithmSpec(
    name="reinforce_plus_plus",
    summary="discounted token returns normalised over the batch, clipped surrogate",
    reward_stage=unchanged,
    advantage=return_advantage,
    policy_loss=token_ppo_loss,
    accepts_kl_coef=True,
    normalize_advantages="required",
    flags=("gamma", *CLIP_FLAGS),
)
