"""The optimizer and its schedule."""

from __future__ import annotations

from typing import Literal

from relax_engine.config.sections.base import Section, flag


class Optimizer(Section):
    """Adam, gradient clipping and the learning-rate schedule."""

    optimizer: Literal["adam"] = "adam"
    """Optimizer; Adam with decoupled weight decay."""

    lr: float = flag(1e-6, gt=0)
    """Peak learning rate."""

    min_lr: float = flag(0.0, ge=0)
    """Learning rate at the end of the decay."""

    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root"] = "constant"
    """Shape of the decay after the warm-up."""

    lr_warmup_iters: int = flag(0, ge=0, unit="optimizer steps")
    """Steps over which the learning rate rises linearly from 0."""

    lr_decay_iters: int | None = flag(None, ge=1, unit="optimizer steps")
    """Steps after which the decay has reached `--min-lr`. Default: all steps of the run."""

    critic_lr: float | None = flag(None, gt=0)
    """Peak learning rate of the critic; its schedule has the actor's shape. Default with a critic: `--lr`."""

    critic_lr_warmup_iters: int = flag(0, ge=0, unit="optimizer steps")
    """Steps over which the critic's learning rate rises linearly from 0."""

    weight_decay: float = flag(0.01, ge=0)
    """Decoupled weight decay; biases and norms are exempt."""

    adam_beta1: float = flag(0.9, ge=0, lt=1)
    """Decay of the first moment."""

    adam_beta2: float = flag(0.999, ge=0, lt=1)
    """Decay of the second moment."""

    adam_eps: float = flag(1e-8, gt=0)
    """Added to the square root of the second moment."""

    clip_grad: float = flag(1.0, ge=0)
    """Largest global gradient norm; 0 for no clipping."""

    use_distributed_optimizer: bool = False
    """Shard optimizer state over data-parallel ranks."""

    accumulate_allreduce_grads_in_fp32: bool = False
    """Accumulate and reduce gradients in float32; accepted without effect, it is always done."""

    optimizer_cpu_offload: bool = False
    """Keep optimizer state in CPU memory; accepted without effect."""

    overlap_cpu_optimizer_d2h_h2d: bool = False
    """Overlap the copies of an offloaded optimizer with computation; accepted without effect."""

    use_precision_aware_optimizer: bool = False
    """Keep optimizer state in lower precision; accepted without effect, it is float32."""
