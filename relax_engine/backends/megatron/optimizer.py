"""The optimizer: Megatron's wrapping of AdamW, its learning-rate schedule, and one update.

What lives here: building both from `OptimizerSettings`, clipping, refusing broken gradients. What does
not: computing gradients, checkpoints.
"""

from __future__ import annotations

import math

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from relax_engine.backends.megatron.settings import OptimizerSettings


def build_optimizer(
    chunks: list[DistributedDataParallel], settings: OptimizerSettings, dtype: torch.dtype
) -> MegatronOptimizer:
    """AdamW over float32 main parameters.

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
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=settings.use_distributed_optimizer,
    )
    optimizer = get_megatron_optimizer(config, chunks)
    for group in optimizer.param_groups:
        if "fused" in group:  # torch's AdamW; one kernel for all parameters instead of a Python loop
            group["fused"] = True
    return optimizer


@torch.no_grad()
def update(optimizer: MegatronOptimizer, clip_grad: float) -> float:
    """Clip the gradients to a global norm of `clip_grad` (0: leave them) and take one step.

    Returns:
        The norm before clipping, over all parameters of the model; the same on every rank.

    Raises:
        FloatingPointError: the norm is not finite. Weights and optimizer state are unchanged.
    """
    optimizer.prepare_grads()
    norm = float(optimizer.get_grad_norm())
    if not math.isfinite(norm):
        raise FloatingPointError(
            f"the gradient norm is {norm}: the step was not taken; look for NaN or infinity in the batch's "
            "log-probs, advantages and loss_weights"
        )
    scale = clip_grad / (norm + 1e-6)
    if 0.0 < scale < 1.0:
        parameters = (p for chained in optimizer.chained_optimizers for p in chained.get_parameters())
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], scale)
    optimizer.step_with_ready_grads()
    return norm


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
