"""Training low-rank adapters instead of the weights (LoRA)."""

from __future__ import annotations

from relax_engine.config.sections.base import Section, StrList, flag, group

LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Layers that may have adapters."""


class Lora(Section):
    """Adapters of the actor's linear layers; all other weights stay as they are."""

    lora_rank: int = flag(0, ge=0)
    """Rank of the adapters: train these, on the weights of `--ref-load`, instead of the weights; 0 trains the weights.
    Checkpoints then hold the adapters, engines receive merged weights."""

    lora_alpha: float = flag(32.0, gt=0)
    """Adapters are scaled by this over the rank."""

    lora_target_modules: StrList = group(lambda: ["linear_qkv", "linear_proj"])
    """Layers that get adapters: `linear_qkv` (q, k, v), `linear_proj` (o), `linear_fc1` (gate, up), `linear_fc2`
    (down); those of experts too, each expert its own."""

    lora_dropout: float = flag(0.0, ge=0, lt=1)
    """Dropout of the adapters' inputs; reinforcement learning needs 0."""

    lora_load: str | None = None
    """PEFT directory that the adapters start from; of the same rank, alpha and layers. The reference is without it."""

    lora_merge_mode: bool = False
    """Send merged weights to the engines; accepted without effect, it is always so."""

    lora_adapter_mode: bool = False
    """Send adapters to engines that apply them; not offered, see --weight-sync-mode delta."""
