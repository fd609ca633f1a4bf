"""The flags of on-policy distillation that the mathematics reads.

What lives here: one frozen record. What does not: where teachers are and how samples find theirs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self

KlKind = Literal["reverse_kl", "forward_kl", "low_var_kl", "jsd"]
NormMode = Literal["tail", "norm", "trunc"]

SAMPLED = ("teacher_log_probs",)
TOP_K = ("teacher_topk_ids", "teacher_topk_log_probs")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationSettings:
    """Distillation flags under their field names; the defaults are the flags' defaults.

    `opd_log_prob_top_k=0` compares the sampled tokens only.
    """

    use_opd: bool = False
    opd_kl_coef: float = 1.0
    opd_loss_coef: float = 0.0
    opd_only_reward: bool = False
    opd_kl_type: KlKind = "reverse_kl"
    opd_jsd_alpha: float = 0.5
    opd_norm_mode: NormMode = "tail"
    opd_log_prob_top_k: int = 0
    opd_log_prob_min_clamp: float | None = None
    opd_per_token_clip: float | None = None
    opd_is_clip: float | None = None

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read the fields from any object with the flags' field names; missing ones take the defaults."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})

    @property
    def in_loss(self) -> bool:
        """Whether the divergence is a term of the loss, rather than of the advantage."""
        return self.use_opd and self.opd_loss_coef != 0.0

    @property
    def in_advantage(self) -> bool:
        """Whether the divergence is taken off the advantage."""
        return self.use_opd and not self.in_loss

    @property
    def columns(self) -> tuple[str, ...]:
        """What the teacher adds to every row; () without distillation."""
        if not self.use_opd:
            return ()
        return SAMPLED + TOP_K if self.opd_log_prob_top_k else SAMPLED
