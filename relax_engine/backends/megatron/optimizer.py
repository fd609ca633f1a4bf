"""The optimizer: Megatron's wrapping of AdamW, and its learning-rate schedule.

What lives here: building both from `OptimizerSettings`. What does not: gradients, checkpoints.
"""

from __future__ import annotations

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from relax_engine.backends.megatron.settings import OptimizerSettings


def build_optimizer(
    model: DistributedDataParallel, settings: OptimizerSettings, dtype: torch.dtype
) -> MegatronOptimizer:
    """AdamW over float32 main parameters, with global-norm clipping.

    float32 models are updated in place; bfloat16 ones keep a float32 copy. Weight decay spares
    one-dimensional parameters (norms and biases).
    """
    config = OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        min_lr=settings.min_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_eps=settings.adam_eps,
        clip_grad=settings.clip_grad,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=settings.use_distributed_optimizer,
    )
    optimizer = get_megatron_optimizer(config, [model])
    for group in optimizer.param_groups:
        if "fused" in group:  # torch's AdamW; one kernel for all parameters instead of a Python loop
            group["fused"] = True
    return optimizer


def build_scheduler(optimizer: MegatronOptimizer, settings: OptimizerSettings) -> OptimizerParamScheduler:
    """The learning rate as a function of the number of optimizer steps taken, `s`.

    `s <= warmup`: `lr * s / warmup`; then, with `r = (s - warmup) / (decay - warmup)`, constant `lr`;
    linear `min + (lr - min)(1 - r)`; cosine `min + (lr - min)(1 + cos(pi r)) / 2`;
    inverse-square-root `max(min, lr * sqrt(max(warmup, 1) / s))`; all but constant end at `min`.
    """
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=settings.lr_warmup_iters,
        lr_decay_steps=max(settings.lr_decay_iters, settings.lr_warmup_iters + 1),
        lr_decay_style=settings.lr_decay_style,
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
