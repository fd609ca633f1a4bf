"""What an algorithm is: a few pure functions and the constraints under which they hold.

What lives here: the types that an algorithm file fills in. What does not: the table of names
(`registry`) and the rules that act on the constraints (`constraints`). Importing this module, or
an algorithm file, does not import torch: the configuration reads constraints without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from relax_engine.algorithms.settings import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """One global batch in the compact response layout.

    `rewards` f32 `[rows]` (after the reward stage, excluded rows 0), `mask` bool `[R]`, `offsets`
    int64 `[rows + 1]`, `kl_penalty` f32 `[R]` (`kl_coef` times the KL estimate, 0 where masked; None
    without `--kl-coef`), and `columns` with whatever else `AlgorithmSpec.advantage_columns` names.
    """

    rewards: Tensor
    mask: Tensor
    offsets: Tensor
    kl_penalty: Tensor | None
    columns: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """What a policy loss sees, all `[R]`: masked positions hold log-probs and advantages of 0.

    `log_probs` carries the gradient; `old_log_probs` and `advantages` are constants. `columns` has
    the extra columns that the algorithm's advantage stage produced.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    offsets: Tensor
    columns: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """`per_token` loss `[R]` with gradient, and detached per-token metrics `[R]` by name."""

    per_token: Tensor
    metrics: dict[str, Tensor]


RewardStage = Callable[[np.ndarray, np.ndarray, AlgorithmSettings], np.ndarray]
"""(rewards f64 `[rows]`, group ids `[rows]`, settings) -> f64 `[rows]`; every reward is finite."""

AdvantageFn = Callable[[AdvantageInputs, AlgorithmSettings], "dict[str, Tensor]"]
"""Returns `advantages` and `returns` `[R]`, and any further per-token column the loss wants."""

PolicyLossFn = Callable[[PolicyTerms, AlgorithmSettings], TokenLoss]

BatchStage = Callable[[PolicyTerms, AlgorithmSettings], "dict[str, Tensor]"]
"""Sees the whole global batch, the present policy against the one that sampled; returns columns `[R]` for the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A requirement on one flag.

    Attributes:
        field: The flag's field name.
        holds: Whether a value is acceptable.
        reason: Why another is not; reads after the algorithm's name.
        fix: What to do about it.
        default: The value where the configuration has no such field.
    """

    field: str
    holds: Callable[[Any], bool]
    reason: str
    fix: str
    default: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSpec:
    """One algorithm, as its file declares it.

    Attributes:
        name: The value of `--advantage-estimator`.
        summary: One line for `--help` and the docs.
        reward_stage: Group-level processing of scalar rewards.
        advantage: Rewards (and values, KL) to per-token advantages, on the global batch.
        policy_loss: Per-token loss before importance correction, reduction, KL and entropy.
        batch_stage: What the loss needs to know of the whole batch before it is split; called once per
            optimizer step, with the log-probs of the weights that the step starts from.
        advantage_columns: Columns `advantage` needs beside rewards and masks.
        loss_columns: Columns made by `advantage` that `policy_loss` needs beside the standard ones.
        stage_columns: Columns made by `batch_stage`.
        kl_level: Whether the ratio is taken per token or per sequence.
        ratio_to_behaviour: The old policy of the ratio is always the one that sampled (`rollout_log_probs`).
        needs_critic: Needs values from a critic role.
        forbids_stale: The objective is only right for data of the current weights.
        needs_whole_groups: Normalisation compares samples of a group, so groups must stay whole.
        min_group_size: Fewest samples per prompt for which the algorithm is defined.
        accepts_kl_coef: Whether `advantage` takes up `AdvantageInputs.kl_penalty` (`--kl-coef`).
        why_no_kl_coef: Otherwise, why not; reads after the algorithm's name.
        requires_token_sums: Needs `--calculate-per-token-loss` or `--loss-constant-length`.
        requires_rewards_normalization: Refuses `--disable-rewards-normalization`.
        normalize_advantages: Whether `--normalize-advantages` is allowed, required or forbidden.
        flags: Field names of the flags that only some algorithms read and this one does; None if
            unknown. The configuration warns of the others.
        constraints: Further requirements on single flags.
    """

    name: str
    summary: str
    reward_stage: RewardStage
    advantage: AdvantageFn
    policy_loss: PolicyLossFn
    batch_stage: BatchStage | None = None
    advantage_columns: tuple[str, ...] = ()
    loss_columns: tuple[str, ...] = ()
    stage_columns: tuple[str, ...] = ()
    kl_level: Literal["token", "sequence"] = "token"
    ratio_to_behaviour: bool = False
    needs_critic: bool = False
    forbids_stale: bool = False
    needs_whole_groups: bool = False
    min_group_size: int = 1
    accepts_kl_coef: bool = False
    why_no_kl_coef: str = "has no per-token reward for a KL penalty to enter, so the coefficient would be ignored"
    requires_token_sums: bool = False
    requires_rewards_normalization: bool = False
    normalize_advantages: Literal["allowed", "required", "forbidden"] = "allowed"
    flags: tuple[str, ...] | None = None
    constraints: tuple[Constraint, ...] = ()
