"""The numbers and switches that the mathematics reads, detached from the rest of the configuration.

What lives here: one frozen record of the algorithm flags. What does not: parsing, help texts and
cross-field rules (`relax_engine.config`), and the rules an algorithm declares (`constraints`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Reduction = Literal["sample_mean", "token_mean", "constant"]
KlType = Literal["k1", "k2", "k3", "low_var_kl"]
TisLevel = Literal["token", "sequence", "geometric"]
TisMode = Literal["truncate", "mask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSettings:
    """Algorithm flags under their field names; the defaults are the flags' defaults.

    `eps_clip_high=None` means `eps_clip`, `eps_clip_c=None` means no dual clip, and
    `loss_constant_length` (tokens) selects the constant-length reduction of Dr. GRPO.
    """

    advantage_estimator: str = "grpo"
    eps_clip: float = 0.2
    eps_clip_high: float | None = None
    eps_clip_c: float | None = None
    value_clip: float = 0.2
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    m2po_kl2_budget: float = 0.01
    m2po_miniclip_low: float = 0.3
    m2po_miniclip_high: float = 0.5
    kl_coef: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.0
    kl_loss_type: KlType = "k1"
    use_unbiased_kl: bool = False
    entropy_coef: float = 0.0
    use_rollout_entropy: bool = False
    gamma: float = 1.0
    lambd: float = 1.0
    normalize_advantages: bool = False
    disable_rewards_normalization: bool = False
    disable_grpo_std_normalization: bool = False
    calculate_per_token_loss: bool = False
    loss_constant_length: int | None = None
    use_rollout_logprobs: bool = False
    use_decoupled_ppo: bool = False
    use_tis: bool = False
    tis_clip: float = 2.0
    tis_clip_low: float = 0.0
    tis_level: TisLevel = "token"
    tis_mode: TisMode = "truncate"
    tis_batch_normalize: bool = False
    custom_tis_function_path: str | None = None
    use_opsm: bool = False
    opsm_delta: float = 1e-4
    custom_pg_loss_reducer_function_path: str | None = None

    @classmethod
    def from_config(cls, config: Any) -> AlgorithmSettings:
        """Read the fields from any object whose attributes are the flags' field names.

        Attributes that the object does not have take the defaults.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})

    @property
    def clip_high(self) -> float:
        """Distance of the upper clip bound from one."""
        return self.eps_clip if self.eps_clip_high is None else self.eps_clip_high

    @property
    def reduction(self) -> Reduction:
        """How per-token losses become one number."""
        if self.loss_constant_length is not None:
            return "constant"
        return "token_mean" if self.calculate_per_token_loss else "sample_mean"

    @property
    def kl_in_reward(self) -> bool:
        """Whether a KL penalty enters the rewards or advantages, which needs reference log-probs."""
        return self.kl_coef != 0.0

    @property
    def kl_in_loss(self) -> bool:
        """Whether the loss has a KL term, hence whether reference log-probs are needed for it."""
        return self.use_kl_loss and self.kl_loss_coef != 0.0

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of the reference model are needed at all."""
        return self.kl_in_loss or self.kl_in_reward

    @property
    def weights_policies(self) -> bool:
        """Whether the loss is weighted by the proximal over the behaviour policy."""
        return self.use_tis or self.use_decoupled_ppo or self.custom_tis_function_path is not None

    def old_column(self, *, true_on_policy: bool) -> str:
        """The column that holds the old policy's log-probs when advantages are computed.

        The engine's where they are taken for the trainer's own (`use_rollout_logprobs`), are the same by
        construction (`true_on_policy`), or where the trainer's are not known yet (`use_decoupled_ppo`), else the ones
        that the trainer recomputed.
        """
        engine = self.use_rollout_logprobs or self.use_decoupled_ppo or true_on_policy
        return "rollout_log_probs" if engine else "log_probs"
