"""What the backend needs to know, as plain values.

What lives here: the small dataclasses the parts of the backend are built from, and reading them
from the run's flat configuration. What does not: anything of Megatron.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from relax_engine.checkpoint.adapters import AdapterShape
from relax_engine.config.layout import ParallelLayout, read_layout

LrDecayStyle = Literal["constant", "linear", "cosine", "inverse-square-root"]


@dataclass(frozen=True, slots=True)
class RecomputeSettings:
    """Which activations the backward pass computes again instead of keeping (Megatron's flags)."""

    granularity: Literal["full", "selective"] | None = None
    method: Literal["uniform", "block"] | None = None
    num_layers: int | None = None


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW and its learning-rate schedule. Step counts are optimizer steps.

    `clip_grad` is the largest global gradient norm (0: no clipping). The rate rises linearly from 0
    over `lr_warmup_iters`, then follows `lr_decay_style` down to `min_lr` at `lr_decay_iters`.
    """

    lr: float = 1e-6
    min_lr: float = 0.0
    lr_decay_style: LrDecayStyle = "constant"
    lr_warmup_iters: int = 0
    lr_decay_iters: int = 1
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    clip_grad: float = 1.0
    use_distributed_optimizer: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_lr <= self.lr:
            raise ValueError(f"min_lr must be between 0 and lr, got min_lr={self.min_lr}, lr={self.lr}")
        if self.lr_decay_style != "constant" and self.lr_warmup_iters >= self.lr_decay_iters:
            raise ValueError(
                f"lr_warmup_iters ({self.lr_warmup_iters}) must be below lr_decay_iters ({self.lr_decay_iters})"
            )


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Train low-rank adapters of this shape only; `dropout` is of their inputs, while training."""

    shape: AdapterShape
    dropout: float = 0.0


Head = Literal["policy", "value", "classifier"]
"""What the model ends in: log-probabilities, one value, or one score per label."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """Everything that `MegatronBackend` reads from the configuration, and which head the model has."""

    hf_checkpoint: str
    layout: ParallelLayout
    optimizer: OptimizerSettings
    recompute: RecomputeSettings = RecomputeSettings()
    dtype: torch.dtype = torch.float32
    seed: int = 1234
    head: Head = "policy"
    aux_loss_coeff: float = 0.0
    frozen: frozenset[str] = frozenset()
    """Parts of a model that sees or hears which keep their weights (`media_model.FROZEN_PARTS`)."""
    adapters: AdapterSettings | None = None


def read_settings(flat: Any, *, layout: ParallelLayout | None = None, value_head: bool = False) -> BackendSettings:
    """Read the flat configuration view (`RunConfig.flat`); `layout` replaces the configured one.

    With `value_head` the model ends in one value per token, for `seq_cls` in one score per label, else in
    log-probabilities.

    Raises:
        ValueError: contradictory values.
    """
    return BackendSettings(
        hf_checkpoint=str(flat.hf_checkpoint),
        layout=layout or read_layout(flat),
        optimizer=_read_optimizer(flat, without=0 if value_head else flat.num_critic_only_steps),
        recompute=RecomputeSettings(flat.recompute_granularity, flat.recompute_method, flat.recompute_num_layers),
        dtype=torch.bfloat16 if flat.bf16 else torch.float32,
        seed=flat.seed,
        head="value" if value_head else "classifier" if flat.loss_type == "seq_cls" else "policy",
        aux_loss_coeff=flat.moe_aux_loss_coeff,
        adapters=None if value_head or not flat.lora_rank else _read_adapters(flat),
        frozen=_read_frozen(flat),
    )


def _read_adapters(flat: Any) -> AdapterSettings:
    shape = AdapterShape(flat.lora_rank, flat.lora_alpha, tuple(flat.lora_target_modules))
    return AdapterSettings(shape, flat.lora_dropout)


def _read_frozen(flat: Any) -> frozenset[str]:
    flags = {
        "language_model": flat.freeze_language_model,
        "vision_model": flat.freeze_vision_model,
        "vision_projection": flat.freeze_vision_projection,
        "audio_model": flat.freeze_audio_model,
        "audio_projection": flat.freeze_audio_projection,
    }
    return frozenset(part for part, frozen in flags.items() if frozen)


def _read_optimizer(flat: Any, *, without: int) -> OptimizerSettings:
    """`without` rollouts take no step."""
    all_steps = max(1, (flat.num_rollout or 1) - without) * (flat.num_steps_per_rollout or 1)
    return OptimizerSettings(
        lr=flat.lr,
        min_lr=flat.min_lr,
        lr_decay_style=flat.lr_decay_style,
        lr_warmup_iters=flat.lr_warmup_iters,
        lr_decay_iters=flat.lr_decay_iters or all_steps,
        weight_decay=flat.weight_decay,
        adam_beta1=flat.adam_beta1,
        adam_beta2=flat.adam_beta2,
        adam_eps=flat.adam_eps,
        clip_grad=flat.clip_grad,
        use_distributed_optimizer=flat.use_distributed_optimizer,
    )
